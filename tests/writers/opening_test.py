import logging
import time

import pytest

from jaxtrain.build import build
from jaxtrain.config import Config, schema
from jaxtrain.pace import Pace
from jaxtrain.train import train
from jaxtrain.workdir import Workdir
from jaxtrain.writers.console import Console
from jaxtrain.writers.notebook import Notebook
from jaxtrain.writers.opening import open_writers
from tests.classifier import make_config, without_times

HERE = "tests.writers.opening_test"


class Tracker:
    """Waits or raises in each call, and remembers those that come through."""

    def __init__(self, secs=0.0, error=None):
        self.secs, self.error, self.steps = secs, error, []

    def write_scalars(self, step, split, scalars, time_now):
        time.sleep(self.secs)
        if self.error is not None:
            raise self.error
        self.steps.append(step)

    def write_text(self, step, name, text):
        raise AssertionError("there is no text in this run")

    write_image = write_text

    def close(self):
        self.steps.append("closed")


class Asking:
    """Keeps what it is built with."""

    made = ()

    def __init__(self, workdir, run_id, name, config, level: int):
        Asking.made = (*Asking.made, (workdir, run_id, name, config["seed"], level))

    def close(self):
        pass


class Missing:
    def __init__(self):
        raise ImportError("No module named 'theirs'; pip install 'jaxtrain[trackers]' installs it")


@pytest.mark.parametrize("tensorboard", [True, False])
def test_the_console_is_always_there_and_tensorboard_where_it_is_wanted(tmp_path, tensorboard):
    workdir = Workdir(tmp_path / "run")
    writers = open_writers(Config(log=schema.Log(tensorboard=tensorboard)), workdir, Pace(10, None), build)
    assert isinstance(writers[0], Console)
    assert len(writers) == 1 + tensorboard
    for writer in writers:
        writer.write_scalars(1, "train", {"loss": 1.0}, time.time())
        writer.close()
    assert any(path.stat().st_size > 60 for path in workdir.tensorboard_dir.iterdir()) == tensorboard


def test_in_a_notebook_its_display_is_there_too(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtrain.writers.opening.is_notebook", lambda: True)
    workdir = Workdir(tmp_path / "run")
    console, notebook = open_writers(Config(log=schema.Log(tensorboard=False)), workdir, Pace(10, None), build)
    assert isinstance(notebook, Notebook)
    for writer in (console, notebook):
        writer.close()


def test_a_tracker_is_built_with_the_run_id_of_the_first_launch_and_another_after_fresh(tmp_path):
    Asking.made = ()
    spec = schema.Spec(f"{HERE}:Asking", {"level": 2})
    config = Config(name="tiny", seed=5, log=schema.Log(tensorboard=False, trackers={"mine": spec}))
    ids = []
    for is_fresh in (False, False, True):
        workdir = Workdir(tmp_path / "run")
        ids.append(workdir.run_id)
        if is_fresh:
            workdir.set_aside()
        workdir.append_manifest({"run_id": workdir.run_id})
        for writer in open_writers(config, workdir, Pace(10, None), build)[1:]:
            writer.close()
    assert Asking.made == tuple((workdir.path, ids[launch], "tiny", 5, 2) for launch in (0, 0, 2))


def test_losses_are_the_same_without_trackers_and_with_slow_raising_and_missing_ones(tmp_path, caplog):
    alone = train(make_config(), tmp_path / "alone")
    slow, raising = Tracker(secs=1.0), Tracker(error=ConnectionError("no network"))
    config = make_config()
    config.log.trackers = {"slow": {"type": slow}, "raising": {"type": raising}}
    config.log.trackers.missing = {"type": f"{HERE}:Missing"}
    followed = train(config, tmp_path / "followed")
    assert list(map(without_times, followed.history)) == list(map(without_times, alone.history))
    assert slow.steps == [4, 8, 12, "closed"]
    assert raising.steps == ["closed"]
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sorted(line for line in told if line.startswith("tracker")) == [
        "tracker missing cannot be opened, the run goes on: ImportError: No module named 'theirs'; "
        "pip install 'jaxtrain[trackers]' installs it",
        "tracker missing failed 4 times; those points are not in it",
        "tracker raising failed 3 times; those points are not in it",
        "tracker raising failed, the run goes on: ConnectionError: no network",
    ]
