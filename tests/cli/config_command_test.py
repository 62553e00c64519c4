import json

import pytest

from jaxtrain.cli.config_command import main
from jaxtrain.config import parse, to_dict
from jaxtrain.errors import ConfigError, WorkdirError

FILE = """
from jaxtrain.config import default_config

def get_config(variant=""):
    config = default_config()
    config.duration = "10 steps"
    here = "tests.build.options_test"
    config.task = dict(type=f"{here}:Task", model=dict(type=f"{here}:Model", layers=2))
    config.data.type, config.data.seq = f"{here}:Source", 8
    config.evals.test = dict(every="5 steps", data=dict(split="test"))
    return config
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    return f"--config={tmp_path / 'mine.py'}"


def rows(text):
    parts = [line.split(maxsplit=1) for line in text.splitlines()]
    return {key: rest for key, rest in parts}  # noqa: C416  dict() would hide what a line is


def test_every_value_is_printed_with_where_it_comes_from(file, capsys):
    assert main([file, "--config.optimizer.b1=0.8", "--config.seed", "3"]) == 0
    printed = {key: " ".join(rest.split()) for key, rest in rows(capsys.readouterr().out).items()}
    assert printed["seed"] == "3 flag"
    assert printed["duration"] == '"10 steps" file'
    assert printed["batch_size"] == "32 default"
    assert printed["optimizer.b1"] == "0.8 flag"
    assert printed["optimizer.b2"] == "0.999 default of optax:adamw"
    assert printed["task.model.vocab_size"] == "... given by the trainer"
    assert printed["evals.test.data.seq"] == "8 data"
    assert printed["evals.test.data.split"] == '"test" file'
    assert printed["data.split"] == '"train" default of tests.build.options_test:Source'
    order = list(printed)
    assert order.index("optimizer.b2") < order.index("schedule.type")


def test_all_problems_of_both_stages_are_told_together(file):
    flags = ["batch_sze=8", "duration=-5 steps", "optimizer.learning_rate=nan", "optimizer.b7=1"]
    with pytest.raises(ConfigError) as error:
        main([file, *(f"--config.{flag}" for flag in flags)])
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == 4
    assert [line.strip().partition(":")[0] for line in lines] == [f"--config.{flag}" for flag in flags]
    assert all("Use --config." in line for line in lines)


def test_a_workdir_stands_for_the_config_of_its_run(file, tmp_path, capsys):
    raw = {"duration": "7 steps", "task": {"type": "builtins:dict"}, "data": {"type": "builtins:dict"}}
    (tmp_path / "config.json").write_text(json.dumps(to_dict(parse(raw).checked())))
    assert main([f"--workdir={tmp_path}"]) == 0
    assert '"7 steps"' in rows(capsys.readouterr().out)["duration"]


def test_neither_config_nor_workdir_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        main([])
    with pytest.raises(WorkdirError):
        main([f"--workdir={tmp_path}"])


def test_references_to_secrets_are_printed_and_their_values_are_not(file, monkeypatch, capsys):
    monkeypatch.setenv("MY_VARIABLE", "sentinel-6612")
    assert main([file, "--config.task.model.dtype=env:MY_VARIABLE"]) == 0
    out = capsys.readouterr().out
    assert "env:MY_VARIABLE" in out
    assert "sentinel-6612" not in out


def test_help_says_what_it_does(capsys):
    assert main(["--help"]) == 0
    assert "--config=FILE" in capsys.readouterr().out
