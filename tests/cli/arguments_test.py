import json
from pathlib import Path

import pytest

from jaxtrain.cli import arguments
from jaxtrain.config import parse
from jaxtrain.errors import ConfigError, WorkdirError

FILE = """
from jaxtrain.config import default_config

def get_config(variant=""):
    config = default_config()
    config.duration = "10 steps"
    config.task.type = config.data.type = "a.b:C"
    config.seed = 5 if variant == "other" else 4
    return config
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    return str(tmp_path / "mine.py")


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "w").mkdir()
    config = {"name": "old", "duration": "7 steps", "seed": 9, "task": {"type": "a.b:C"}, "data": {"type": "a.b:C"}}
    (tmp_path / "w" / "config.json").write_text(json.dumps(config))
    return str(tmp_path / "w")


def config(given):
    return parse(given.draft).checked()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)], ids=["forwards", "backwards", "mixed"])
def test_flags_come_in_any_order(file, order):
    flags = [f"--config={file}:other", "--config.batch_size=64", "--workdir=w", "--fresh"]
    given = arguments.read([flags[index] for index in order], switches=("--fresh", "--allow_drift"))
    assert (config(given).seed, config(given).batch_size, config(given).name) == (5, 64, "mine-other")
    assert (given.workdir, given.switches) == (Path("w"), {"--fresh"})


def test_values_may_stand_behind_a_space(file):
    given = arguments.read(["--workdir", "some where", "--config", file, "--config.seed", "8"])
    assert (config(given).seed, given.workdir, given.switches) == (8, Path("some where"), frozenset())


def test_without_a_workdir_there_is_none(file):
    assert arguments.read([f"--config={file}"]).workdir is None


def test_a_workdir_alone_gives_the_config_of_its_run_and_flags_change_it(workdir):
    given = arguments.read([f"--workdir={workdir}", "--config.seed=1"])
    assert (config(given).name, config(given).duration, config(given).seed) == ("old", "7 steps", 1)
    assert given.workdir == Path(workdir)


def test_the_file_wins_over_the_config_in_the_workdir(file, workdir):
    assert config(arguments.read([f"--config={file}", f"--workdir={workdir}"])).seed == 4


def test_a_program_in_the_workdir_is_never_run(workdir):
    (Path(workdir) / "config.py").write_text("raise SystemExit('executed')")
    assert config(arguments.read([f"--workdir={workdir}"])).seed == 9


def test_a_workdir_without_a_config_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(WorkdirError, match=r"no config\.json in .*empty"):
        arguments.read([f"--workdir={tmp_path / 'empty'}"])
    with pytest.raises(WorkdirError, match=r"no run at .*nowhere"):
        arguments.read([f"--workdir={tmp_path / 'nowhere'}"])


def test_nothing_at_all_says_what_is_needed_and_what_else_is_wrong():
    with pytest.raises(ConfigError) as raised:
        arguments.read(["--frehs"], switches=("--fresh",))
    assert "Write --config=" in str(raised.value)
    assert "--frehs" in str(raised.value)
    assert "--fresh" in str(raised.value)


def test_unknown_flags_and_misspelt_keys_are_told_together(file):
    given = arguments.read([f"--config={file}", "--wrokdir=x", "--config.batch_sze=8"], switches=("--fresh",))
    with pytest.raises(ConfigError) as raised:
        parse(given.draft).checked()
    text = str(raised.value)
    assert "2 problems" in text
    assert "--workdir" in text
    assert "batch_size" in text


def test_a_switch_is_only_one_where_the_command_has_it(file):
    given = arguments.read([f"--config={file}", "--fresh"])
    assert given.switches == frozenset()
    with pytest.raises(ConfigError, match="--fresh"):
        parse(given.draft).checked()


def test_flags_with_values_are_taken_in_order_and_the_last_one_counts(workdir):
    flags = ["--prompt=a", "--step", "3", f"--workdir={workdir}", "--prompt", "b=c", "--step=4"]
    given = arguments.read(flags, values=("--prompt", "--step", "--top_p"))
    assert given.values == {"--prompt": ["a", "b=c"], "--step": ["3", "4"]}
    assert (given.text("--step", "latest"), given.text("--json", "x")) == ("4", "x")
    assert (given.number("--step", 0), given.number("--top_p", 0.5)) == (4, 0.5)
    with pytest.raises(ConfigError, match=r"--prompt=b=c: not a number\. The default is 1\.5"):
        given.number("--prompt", 1.5)


def test_a_flag_with_a_value_is_only_one_where_the_command_has_it(workdir):
    with pytest.raises(ConfigError, match="--step"):
        parse(arguments.read([f"--workdir={workdir}", "--step=4"]).draft).checked()


@pytest.mark.parametrize("flag", ["--workdir", "--step"])
def test_a_flag_without_its_value_says_how_to_write_it(flag):
    with pytest.raises(ConfigError, match=f"Write {flag}=VALUE"):
        arguments.read([flag], values=("--step",))
