import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxtrain.train
from jaxtrain.callbacks import Callback
from jaxtrain.cli import train_command
from jaxtrain.config.modes import MODES
from jaxtrain.errors import ConfigError
from jaxtrain.preemption import Signals
from tests.runner import Runner

# The commands below import this module for its callback: from then on they count what is compiled and what is found.
compilations = {"/jax/compilation_cache/cache_misses": 0, "/jax/compilation_cache/cache_hits": 0}


def count(event, **_):
    if event in compilations:
        compilations[event] += 1


jax.monitoring.register_event_listener(count)


class Count(Callback):
    """Writes down how many programs this process compiled, and how many it found in the cache."""

    def on_end(self, run):
        Path("compilations.json").write_text(json.dumps(list(compilations.values())))


FILE = """
from jaxtrain import default_config

def get_config():
    config = default_config()
    config.duration = "4 steps"
    config.batch_size = 8
    config.data.type, config.data.path = "jaxtrain.data.arrays:Arrays", "rows.npz"
    config.task.type = "jaxtrain.tasks.classification:Classification"
    config.task.model = {"type": "jaxtrain.models.mlp:MLP", "features": (8,), "num_outputs": 3}
    config.evals.test = {"batch_size": 4, "every": "2 steps"}
    config.log.every = "2 steps"
    config.compile_cache = "programs"
    config.callbacks.count = {"type": "tests.cli.train_command_test:Count"}
    return config
"""


def write_files(here):
    rng = np.random.default_rng(0)
    image, label = rng.normal(size=(20, 4)).astype("float32"), rng.integers(3, size=20)
    np.savez(here / "rows.npz", image=image, label=label.astype("int32"))
    (here / "mine.py").write_text(FILE)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The same command twice, the second time from the beginning: how each ended, its lines, and what it compiled."""
    here = tmp_path_factory.mktemp("commands")
    write_files(here)
    ended = []
    with Runner(cwd=here) as cli:
        for switches in ((), ("--fresh",)):
            finished = cli.run("--config=mine.py", *switches)
            assert finished.returncode == 0, finished.output
            lines = [json.loads(line) for line in (here / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()]
            ended.append((finished, lines, json.loads((here / "compilations.json").read_text())))
    return ended


def test_a_second_process_with_a_warm_cache_compiles_nothing(commands):
    (_, _, cold), (_, _, warm) = commands
    assert cold[0] > 3
    assert warm == [0, sum(cold)]


def test_fresh_programs_and_those_of_the_cache_give_the_same_bits(commands):
    losses = [[line["loss"] for line in lines] for _, lines, _ in commands]
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]


def test_the_command_tells_the_time_to_the_first_step_and_its_lines(commands):
    output = commands[0][0].stdout
    assert "first step after" in output
    assert "starting Python" in output
    assert "compiling" in output
    assert "step 4/4  test  loss" in output
    assert commands[0][0].stderr == ""


class FakeSignals:
    def __init__(self):
        self.is_installed = False

    def install(self):
        self.is_installed = True


@pytest.fixture
def called(monkeypatch, tmp_path):
    """Replace `train`; gives how it was called."""
    calls = []

    def train(draft, workdir, **keys):
        calls.append((draft, workdir, keys))
        return jaxtrain.Result(status[0], 3, None, [], tmp_path)

    status = ["finished"]
    monkeypatch.setattr(train_command, "Signals", FakeSignals)
    monkeypatch.setattr(sys.modules["jaxtrain.train"], "train", train)
    (tmp_path / "mine.py").write_text(FILE)
    return calls, status, f"--config={tmp_path / 'mine.py'}"


@pytest.mark.parametrize(("ended", "code"), [("finished", 0), ("preempted", 75)])
def test_the_exit_code_says_whether_the_same_command_goes_on(called, ended, code):
    calls, status, config = called
    status[0] = ended
    assert train_command.main([config]) == code
    ((_, workdir, keys),) = calls
    assert workdir is None
    assert keys.pop("signals").is_installed
    assert keys == {"fresh": False, "allow_drift": False}


def test_switches_and_the_workdir_reach_the_run(called):
    calls, _, config = called
    train_command.main(["--allow_drift", config, "--workdir=w", "--fresh", "--config.seed=3"])
    ((draft, workdir, keys),) = calls
    assert workdir == Path("w")
    assert (keys["fresh"], keys["allow_drift"]) == (True, True)
    assert draft.problems == ()


def test_a_mode_begins_anew_in_a_workdir_of_its_own(called):
    calls, _, config = called
    train_command.main(["--smoke", config, "--workdir=there/w"])
    train_command.main(["--smoke", config])
    (first, named, keys), (_, default, _) = calls
    assert keys["fresh"]
    assert named == Path("there/w-smoke")
    assert default is None
    assert first.raw["name"] == "mine-smoke"
    assert first.raw["duration"] == "2 steps"


class Uninstalled(Signals):
    def install(self):
        return False


@pytest.fixture
def lines_of(monkeypatch, tmp_path):
    """Call the command in this process; gives the lines of the run `name`."""
    monkeypatch.setattr(train_command, "Signals", Uninstalled)
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)

    def call(name, *argv):
        assert train_command.main(["--config=mine.py", "--config.evals.test.batch_size=8", *argv]) == 0
        return [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text().splitlines()]

    return call


def test_smoke_makes_two_steps_of_everything_each_time_and_leaves_the_run_alone(lines_of):
    lines_of("mine", "--config.duration=1 step")
    run = {path: path.stat().st_mtime_ns for path in Path("runs/mine").rglob("*")}
    for attempt in range(2):
        lines = lines_of("mine-smoke", "--smoke", "--config.checkpoint.best_metric=test/loss")
        assert [(line["step"], line["split"]) for line in lines] == [(1, "train"), (2, "train"), (2, "test")]
        assert Path("runs/mine-smoke/checkpoints/2").is_dir()
        assert Path("compilations.json").exists()  # a callback was there
        assert Path("runs/mine-smoke/set_aside").exists() == (attempt == 1)
    assert run == {path: path.stat().st_mtime_ns for path in Path("runs/mine").rglob("*")}


def test_overfit_brings_the_loss_of_one_batch_to_nearly_nothing(lines_of):
    flags = ("--config.optimizer.learning_rate=0.05", "--config.duration=100 steps")
    alone, all_of_them = (
        [line["loss"] for line in lines_of(name, *modes, *flags) if line["split"] == "train"]
        for name, modes in (("mine-overfit", ("--overfit",)), ("mine", ()))
    )
    assert len(alone) == 50
    assert alone[-1] < 0.1 < 0.5 < alone[0]
    assert alone[-1] < 0.5 * all_of_them[-1]


def test_barebones_writes_lines_and_one_checkpoint_and_nothing_else(lines_of):
    lines = lines_of("mine-barebones", "--barebones", "--config.duration=4 steps")
    assert [(line["step"], line["split"]) for line in lines] == [(2, "train"), (4, "train")]
    assert not list(Path("runs/mine-barebones/tensorboard").iterdir())
    assert [path.name for path in Path("runs/mine-barebones/checkpoints").iterdir() if path.name.isdecimal()] == ["4"]


def test_help_names_each_mode(capsys):
    assert train_command.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "--config=FILE" in printed
    assert all(mode in printed for mode in MODES)


def test_a_file_that_is_not_there_is_told_before_anything_else(called):
    with pytest.raises(ConfigError, match="missing"):
        train_command.main(["--config=missing.py"])
    assert called[0] == []
