import inspect
import logging
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.config import Config, schema
from jaxtrain.metrics import Mean
from jaxtrain.pace import Pace
from jaxtrain.reporting import Reporter, StepTimer, open_writers
from jaxtrain.step import Counters, Interval
from jaxtrain.train import train
from jaxtrain.workdir import Workdir
from jaxtrain.writers.console import Console
from jaxtrain.writers.jsonl import read_lines
from jaxtrain.writers.notebook import Notebook
from tests.classifier import make_config, without_times

HERE = "tests.reporting_test"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class OnDevice:
    """A number on the device that notes when it is read."""

    def __init__(self, value, reads, name):
        self.value, self.reads, self.name = value, reads, name

    def __array__(self, dtype=None, copy=None):
        self.reads.append(self.name)
        return np.asarray(self.value, dtype)


class Shown:
    """Another writer."""

    def __init__(self):
        self.lines, self.is_closed = [], False

    def write_scalars(self, step, split, scalars, time):
        self.lines.append((step, split, dict(scalars), time))

    def close(self):
        self.is_closed = True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def made(tmp_path, clock):
    """Make reporters of one run, and keep what callbacks would hear."""
    heard = []

    def make(start_step=0, tokens_per_example=None, writers=(), **keys):
        return Reporter(
            tmp_path / "metrics.jsonl",
            writers,
            batch_size=4,
            tokens_per_example=tokens_per_example,
            start_step=start_step,
            on_log=lambda step, scalars: heard.append((step, scalars)),
            clock=clock,
            **keys,
        )

    make.path, make.heard = tmp_path / "metrics.jsonl", heard
    return make


def counters(skipped=0, empty=0, halted=False):
    return Counters(np.int32(skipped), np.int32(empty), np.int32(0), np.bool_(halted), np.int32(0), np.int32(0))


def interval(loss, num_steps=2):
    return Interval(np.int32(num_steps), {"loss": Mean(loss, np.float32(2))})


def test_step_times_leave_out_what_is_paused(clock):
    timer = StepTimer(clock)
    for waited in (0.5, 0.75, 1.0, 1.0):
        clock.now += 3
        timer.count_step(waited)
    timer.pause(4)
    assert timer.take() == {"step_secs": 2.0, "data_wait_secs": 0.25}
    clock.now += 5
    timer.count_step(1.5)
    assert timer.take() == {"step_secs": 5.0, "data_wait_secs": 0.5}


def test_the_clock_on_the_wall_does_not_matter():
    for made in (StepTimer, Reporter):
        assert inspect.signature(made).parameters["clock"].default is time.monotonic


def test_a_timer_without_steps_or_time_divides_by_nothing(clock):
    timer = StepTimer(clock)
    assert timer.take() == {"step_secs": 1e-9, "data_wait_secs": 0.0}
    timer.pause(1)
    assert timer.take()["step_secs"] == 1e-9


def test_a_log_point_reads_the_one_before_and_not_itself(made):
    reporter, reads = made(), []
    for step in (2, 4, 6):
        reporter.keep(step, interval(OnDevice(np.float32(step), reads, step)), counters(), 4 * step)
    assert reads == [2, 4]
    assert [step for step, _ in made.heard] == [2, 4]
    reporter.flush()
    assert reads == [2, 4, 6]
    reporter.flush()
    assert reads == [2, 4, 6]
    assert [(line["step"], line["loss"]) for line in read_lines(made.path)] == [(2, 1.0), (4, 2.0), (6, 3.0)]


def test_what_is_kept_is_written_before_an_evaluation_of_its_step(made):
    reporter = made()
    reporter.keep(2, interval(np.float32(2)), counters(), 8)
    reporter.write_eval(2, "validation", {"loss": 0.5})
    assert [(line["split"], line["step"]) for line in read_lines(made.path)] == [("train", 2), ("validation", 2)]
    assert reporter.has_line("validation", 2)
    assert not reporter.has_line("validation", 4)
    assert not reporter.has_line("test", 2)


def test_numbers_of_callbacks_are_read_with_the_line_that_they_are_of(made):
    reporter, reads = made(), []
    reporter.keep(2, interval(np.float32(2)), counters(), 8, scalars={"norm": OnDevice(np.float32(0.1), reads, "norm")})
    assert reads == []
    reporter.keep(4, interval(np.float32(2)), counters(), 16)
    reporter.flush()
    first, second = read_lines(made.path)
    assert (reads, first["norm"]) == (["norm"], float(np.float32(0.1)))
    assert "norm" not in second


def test_reading_a_line_moves_nothing_else_between_host_and_devices(made):
    reporter = made()
    kept = jax.device_put((interval(jnp.float32(3)), counters()))
    with jax.transfer_guard("disallow"):
        reporter.keep(2, *kept, 8)
        reporter.flush()
    assert next(read_lines(made.path))["loss"] == 1.5


def test_mfu_is_the_part_of_the_time_that_the_step_would_take_at_the_peak(made, clock):
    reporter = made(peak_step_secs=0.5)
    for _ in range(4):
        clock.now += 2
        reporter.timer.count_step(0.0)
    reporter.keep(4, interval(np.float32(1)), counters(), 16)
    reporter.flush()
    assert next(read_lines(made.path))["mfu"] == 0.25


def test_rates_are_over_the_steps_of_the_interval(made, clock):
    reporter = made(tokens_per_example=10)
    for step in (1, 2):
        clock.now += 0.5
        reporter.timer.count_step(0.1 * step)
    reporter.keep(2, interval(np.float32(1)), counters(skipped=1, empty=3), 8)
    clock.now += 100  # while it is kept
    reporter.flush()
    ((step, scalars),) = made.heard
    assert step == 2
    assert scalars == {
        "loss": 0.5,
        "skipped": 1,
        "empty": 3,
        "step_secs": 0.5,
        "data_wait_secs": 0.1,
        "examples_per_sec": 8.0,
        "examples_seen": 8,
        "tokens_per_sec": 80.0,
        "tokens_seen": 80,
    }


def test_without_tokens_there_are_no_token_rates(made):
    reporter = made()
    reporter.keep(2, interval(np.float32(1)), counters(), 8)
    reporter.flush()
    assert not [name for name in made.heard[0][1] if "token" in name]


def test_an_interval_without_an_applied_step_has_no_mean(made):
    reporter = made()
    reporter.keep(2, interval(np.float32(0), num_steps=0), counters(skipped=2), 8)
    reporter.flush()
    (line,) = read_lines(made.path)
    assert math.isnan(line["loss"])
    assert line["skipped"] == 2


def test_the_newest_counters_that_were_read_are_known(made):
    reporter = made()
    assert reporter.last_counters is None
    reporter.keep(2, interval(np.float32(1)), counters(halted=True), 8)
    assert reporter.last_counters is None
    reporter.keep(4, interval(np.float32(1)), counters(), 16)
    assert reporter.last_counters.halted


def test_bad_examples_are_counted_in_the_line_once_there_are_any(made):
    reporter = made()
    reporter.keep(2, interval(np.float32(1)), counters(), 8)
    reporter.keep(4, interval(np.float32(1)), counters(), 16, bad_examples=3)
    reporter.flush()
    assert [line.get("bad_examples") for line in read_lines(made.path)] == [None, 3]


def test_a_line_is_known_from_when_it_is_kept(made):
    reporter = made()
    assert not reporter.has_line("train", 2)
    reporter.keep(2, interval(np.float32(1)), counters(), 8)
    assert reporter.has_line("train", 2)
    reporter.flush()
    assert reporter.has_line("train", 2)
    assert not reporter.has_line("train", 4)


def test_every_writer_gets_the_same_lines_with_the_time_of_the_file(made):
    shown = Shown()
    reporter = made(writers=[shown])
    reporter.keep(2, interval(np.float32(1)), counters(), 8)
    reporter.write_eval(2, "validation", {"loss": 0.5})
    reporter.close()
    written = [(line.pop("step"), line.pop("split"), line.pop("time"), line) for line in read_lines(made.path)]
    assert [(step, split, time, scalars) for step, split, scalars, time in shown.lines] == written
    assert shown.is_closed


def test_lines_of_later_steps_are_dropped_and_made_again(made):
    reporter = made()
    for step in (2, 4, 6):
        reporter.keep(step, interval(np.float32(step)), counters(), 4 * step)
    reporter.write_eval(6, "validation", {"loss": 0.5})
    reporter.close()
    again = made(start_step=4)
    assert again.has_line("train", 4)
    assert not again.has_line("train", 6)
    assert [line["step"] for line in read_lines(made.path)] == [2, 4]
    assert not again.has_line("validation", 6)


def test_a_text_reaches_every_writer_and_no_line(made):
    writers = [Texts(), Texts()]
    reporter = made(writers=writers)
    reporter.write_text(3, "sample", "def f")
    reporter.close()
    assert [writer.texts for writer in writers] == [[(3, "sample", "def f")]] * 2
    assert made.path.read_bytes() == b""


class Texts:
    def __init__(self):
        self.texts = []

    def write_text(self, step, name, text):
        self.texts.append((step, name, text))

    def close(self):
        pass


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
    writers = open_writers(Config(log=schema.Log(tensorboard=tensorboard)), workdir, Pace(10, None))
    assert isinstance(writers[0], Console)
    assert len(writers) == 1 + tensorboard
    for writer in writers:
        writer.write_scalars(1, "train", {"loss": 1.0}, time.time())
        writer.close()
    assert any(path.stat().st_size > 60 for path in workdir.tensorboard_dir.iterdir()) == tensorboard


def test_of_several_processes_only_the_first_shows_lines_to_others(tmp_path):
    Asking.made = ()
    config = Config(log=schema.Log(tensorboard=True, trackers={"mine": schema.Spec(f"{HERE}:Asking", {"level": 2})}))
    Workdir(tmp_path / "run", num_processes=2)
    second = Workdir(tmp_path / "run", create=False, process=1, num_processes=2)
    (console,) = open_writers(config, second, Pace(10, None))
    assert isinstance(console, Console)
    console.close()
    assert not second.trackers_dir.exists()


def test_in_a_notebook_its_display_is_there_too(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtrain.reporting.is_notebook", lambda: True)
    workdir = Workdir(tmp_path / "run")
    console, notebook = open_writers(Config(log=schema.Log(tensorboard=False)), workdir, Pace(10, None))
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
        for writer in open_writers(config, workdir, Pace(10, None))[1:]:
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
