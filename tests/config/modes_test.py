import json

import pytest

from jaxtrain.config import Config, flatten, overrides, parse, to_dict
from jaxtrain.config.modes import MODES, apply

FILE = {
    "name": "mine",
    "duration": "90 epochs",
    "batch_size": 64,
    "task": {"type": "a.b:Task"},
    "data": {"type": "a.b:Data"},
    "evals": {"validation": {"every": "1 epochs"}, "test": {"num_batches": 9}},
    "schedule": {"warmup": "500 steps"},
    "checkpoint": {"every": "1 epochs", "keep_best": 1, "best_metric": "validation/loss"},
    "callbacks": {"sample": {"type": "a.b:C", "every": "3 epochs"}, "other": {"type": "a.b:C"}},
    "log": {"every": "100 steps"},
    "profile": {"steps": "10:13"},
}


def read(*modes, flags=(), file=FILE):
    draft = overrides.apply(file, flags)
    for mode in modes:
        draft = apply(draft, mode)
    return parse(draft)


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_sets_keys_of_the_schema_to_right_values_and_names_itself_as_their_origin(mode):
    parsed = read(mode)
    assert parsed.problems == ()
    assert parsed.origins["name"] == mode
    assert parsed.config.name == f"mine{mode[1:]}"
    schema = {key for key, _ in flatten(to_dict(Config()))}
    values = {key: json.loads(json.dumps(value)) for key, value in flatten(to_dict(parsed.config))}
    for key, value in MODES[mode].values.items():
        if "*" not in key:
            assert key in schema
            assert values[key] == value
            assert parsed.origins[key] == mode


def test_smoke_is_two_steps_of_each_part_that_the_config_has():
    config = read("--smoke").config
    assert (config.duration, config.schedule.warmup) == ("2 steps", "")
    assert (config.log.every, config.checkpoint.every) == ("1 steps", "2 steps")
    assert {name: (e.every, e.num_batches) for name, e in config.evals.items()} == {
        "validation": ("2 steps", 2),
        "test": ("2 steps", 2),
    }
    assert config.checkpoint.best_metric == "validation/loss"
    assert config.batch_size == 64


def test_only_callbacks_that_say_every_are_made_to_say_it_more_often():
    callbacks = read("--smoke").config.callbacks
    assert callbacks["sample"].options == {"every": "2 steps"}
    assert callbacks["other"].options == {}


@pytest.mark.parametrize("mode", ["--overfit", "--barebones"])
def test_without_evaluations_nothing_waits_for_their_numbers(mode):
    config = read(mode).config
    assert (config.evals, config.callbacks, config.checkpoint.best_metric) == ({}, {}, "")
    assert config.checkpoint.every == ""


def test_flags_win_over_a_mode_and_a_mode_over_the_file():
    flags = ("duration=5 steps", "evals.test.num_batches=4", "name=other")
    parsed = read("--smoke", flags=flags)
    assert parsed.config.duration == "5 steps"
    assert parsed.origins["duration"] == "flag"
    assert [parsed.config.evals[name].num_batches for name in ("validation", "test")] == [2, 4]
    assert parsed.config.name == "other-smoke"
    assert parsed.origins["evals.validation.num_batches"] == "--smoke"


def test_of_two_modes_the_later_wins():
    parsed = read("--overfit", "--smoke")
    assert (parsed.config.data.num_batches, parsed.config.duration) == (1, "2 steps")
    assert parsed.config.name == "mine-overfit-smoke"


@pytest.mark.parametrize("group", ["evals", "checkpoint", "callbacks"])
def test_what_is_wrong_with_the_config_is_told_as_without_a_mode(group):
    file = {**FILE, group: 7}
    wrong = read(file=file).problems
    assert wrong
    assert {str(problem) for problem in read("--smoke", file=file).problems} == {str(problem) for problem in wrong}


def test_a_config_without_a_mode_is_left_as_it_is():
    assert to_dict(read().config) == to_dict(parse(FILE).config)
