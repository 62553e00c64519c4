import json

import jax
import pytest

from jaxtrain.config import parse
from jaxtrain.doctor import probe
from jaxtrain.doctor.programs import MARK
from tests.classifier import make_config, on_one_device
from tests.faults import trial


@pytest.fixture
def told(capsys):
    """Run a probe in this process; gives its exit code and what it told."""

    def run(*argv):
        code = probe.main(argv)
        lines = [json.loads(line.removeprefix(MARK)) for line in capsys.readouterr().out.splitlines() if MARK in line]
        return code, {line.pop("of"): line for line in lines}

    return run


@pytest.fixture
def here(tmp_path, monkeypatch):
    trial.set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_device_computes(told):
    code, facts = told("devices")
    assert code == 0
    assert facts["import"]["version"] == jax.__version__
    assert (facts["devices"]["kinds"], facts["devices"]["wrong"]) == (["cpu"] * 8, [])


def test_collectives_are_right_and_have_a_rate(told):
    code, facts = told("collectives")
    assert code == 0
    assert set(facts) == {"psum", "all_gather"}
    for each in facts.values():
        assert each["is_right"]
        assert each["num_devices"] == 8
        assert each["bytes_per_sec"] > 0


def test_the_config_says_what_it_needs(told, here):
    flags = ("--config.data.token=env:A_TOKEN", "--config.data.account={'deep': {'keys': ['env:B_TOKEN']}}")
    code, facts = told("settings", "--config=tiny.py", *flags, "--config.compile_cache=there")
    settings = facts["settings"]
    assert (code, settings["name"], settings["problems"], settings["compile_cache"]) == (0, "tiny", "", "there")
    assert ["A_TOKEN", "data.token"] in settings["secrets"]
    assert "B_TOKEN" in {name for name, _ in settings["secrets"]}


def test_problems_of_a_config_are_those_of_a_run(told, here):
    code, facts = told("settings", "--config=tiny.py", "--config.batch_size=-1", "--config.sede=1")
    assert code == 0
    assert "The config has 2 problems" in facts["settings"]["problems"]
    assert "--config.batch_size=-1" in facts["settings"]["problems"]
    code, facts = told("settings", "--config=gone.py")
    assert (code, facts["error"]["kind"]) == (1, "ConfigError")


def test_the_state_and_both_ends_of_each_source_are_told(told, here):
    code, facts = told("experiment", "--num_processes=1", "--config=tiny.py", "--config.batch_size=16")
    assert (code, facts.get("error")) == (0, None)
    assert facts["state"]["num_steps"] == 12
    assert facts["state"]["num_checkpoints"] == 4  # one each third step of twelve
    assert facts["read data"]["num_examples"] + facts["read evals.validation.data"]["num_examples"] <= 50
    # Adam's two moments beside 75 float32 parameters, and some counters.
    assert 3 * 4 * 75 <= facts["state"]["num_bytes"] < 3 * 4 * 75 + 200


def test_sizes_are_held_against_the_devices_of_all_processes(told, here):
    code, facts = told("experiment", "--num_processes=4", "--config=tiny.py", "--config.batch_size=16")
    assert (code, facts["error"]["kind"]) == (1, "ConfigError")
    assert "not divisible by 2 microbatches times the 32 devices" in facts["error"]["text"]
    code, facts = told("experiment", "--num_processes=4", "--config=tiny.py", "--config.batch_size=64")
    assert (code, "state" in facts) == (0, True)


@pytest.mark.parametrize("last", [False, True])
def test_an_example_that_cannot_be_read_is_named(told, here, last):
    num = told("experiment", "--num_processes=1", "--config=tiny.py", "--config.batch_size=16")[1]["read data"][
        "num_examples"
    ]
    bad = num - 1 if last else 0
    flags = ("--config=tiny.py", "--config.batch_size=16", f"--config.data.bad=({bad},)")
    code, facts = told("experiment", "--num_processes=1", *flags)
    assert (code, facts["error"]["kind"]) == (1, "ExampleError")
    assert f"--config.data: example {bad} cannot be read" in facts["error"]["text"]
    assert "state" in facts


@pytest.mark.parametrize(
    ("changes", "num"),
    [
        ({"every": "3 steps", "keep_last": 2}, 3),
        ({"every": "3 steps", "keep_last": 10}, 4),  # no more than are made
        ({"every": "", "keep_last": 2}, 1),
        ({"every": "1 steps", "keep_last": 1, "keep_every": "4 steps"}, 2 + 3),
        ({"every": "3 steps", "keep_last": 1, "keep_best": 1, "best_metric": "v/loss"}, 3),
    ],
)
def test_checkpoints_that_may_be_there_at_once(changes, num):
    config = make_config(checkpoint=changes, evals={"v": {"every": "3 steps"}})
    assert probe.num_checkpoints(on_one_device(config)) == num


def test_a_run_by_the_clock_keeps_what_is_known():
    config = make_config(duration="1 hour", checkpoint={"keep_last": 3, "keep_every": "10 steps"})
    assert probe.num_checkpoints(on_one_device(config)) == 4


def test_references_have_their_key():
    config = parse(make_config(log={"trackers": {"w": {"type": "a:B", "key": "env:TOKEN"}}})).config
    assert list(probe._references(config)) == [("TOKEN", "log.trackers.w.key")]
