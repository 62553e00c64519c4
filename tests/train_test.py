import json
import logging
import re
import shutil
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxtrain
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.data.arrays import Arrays
from jaxtrain.errors import NonFiniteError, WorkdirError
from jaxtrain.models.mlp import MLP
from jaxtrain.pace import Pace
from jaxtrain.preemption import Signals
from jaxtrain.tasks.classification import Classification
from jaxtrain.train import train
from tests.classifier import (
    ROWS,
    At,
    Recorder,
    make_config,
    opened_loop,
    rows,
    saved_steps,
    split_steps,
    without_times,
)


def with_evals(**changes):
    """Three evaluations, each with its own cadence; two have batches of one shape. Checkpoints at every third step."""
    config = make_config(**changes)
    config.evals.validation = {"every": "5 steps"}
    config.evals.test = {"data": {"type": rows(40, seed=1)}, "batch_size": 16}
    config.evals.again = {"every": "4 steps", "num_batches": 2}
    config.checkpoint = {"every": "3 steps", "keep_last": 10}
    return config


LINES = [
    ("train", 4),
    ("again", 4),
    ("validation", 5),
    ("train", 8),
    ("again", 8),
    ("validation", 10),
    ("train", 12),
    ("validation", 12),
    ("test", 12),
    ("again", 12),
]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Programs need not be fast here."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run, what a callback saw of it, and the programs that were compiled meanwhile."""
    recorder, compiled = Recorder(), []
    workdir = tmp_path_factory.mktemp("finished")

    class Listener(logging.Handler):
        def emit(self, record):
            if record.getMessage().startswith("Finished XLA compilation of "):
                compiled.append((record.getMessage().split()[4], len(recorder.events)))

    listener = Listener(logging.DEBUG)
    saves = []
    save = Checkpoints.save

    def spy(self, step, state, info):
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        saves.append((step, max((json.loads(line)["step"] for line in lines), default=0)))
        save(self, step, state, info)

    jax.clear_caches()  # another test may have trained the same programs
    with pytest.MonkeyPatch.context() as patch, jax.log_compiles():
        patch.setattr(Checkpoints, "save", spy)
        logging.getLogger("jax").addHandler(listener)
        config = with_evals(callbacks={"recorder": {"type": recorder}})
        result = train(config, workdir)
        logging.getLogger("jax").removeHandler(listener)
    return result, recorder, compiled, saves


@pytest.fixture
def copy(tmp_path, finished):
    """The workdir of the finished run, copied to another place."""
    return shutil.copytree(finished[0].workdir, tmp_path / "w")


def comparable(result):
    return [without_times(line) for line in result.history]


def assert_same(result, finished):
    """Equal lines and an equal final state, bit for bit."""
    assert comparable(result) == comparable(finished[0])
    for ours, theirs in zip(*(jax.tree.leaves(r.state.params) for r in (result, finished[0])), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def test_the_name_of_the_package_is_the_function():
    assert jaxtrain.train is train
    assert sys.modules["jaxtrain.train"].train is train


def test_every_line_is_there_once_in_the_order_of_steps_and_of_the_config(finished):
    assert split_steps(finished[0].history) == LINES


def test_lines_have_the_keys_that_are_promised(finished):
    for line in finished[0].history:
        if line["split"] == "train":
            assert line.keys() >= {
                *("step", "time", "split", "loss", "grad_norm", "learning_rate", "accuracy", "skipped", "empty"),
                *("step_secs", "data_wait_secs", "examples_per_sec", "examples_seen"),
            }
            assert "mfu" not in line  # the peak of a CPU is not known
            assert line["examples_seen"] == 8 * line["step"]
            assert line["learning_rate"] == pytest.approx(1e-3)
        else:
            assert line.keys() == {"step", "time", "split", "loss", "accuracy"}


def test_the_flops_of_a_step_are_told_at_its_start(finished):
    # Forward: 8 x (4 x 8 + 8 x 3); backward: as much for the kernels, and 8 x 8 x 3 for the hidden features.
    multiply_adds = 2 * 8 * (4 * 8 + 8 * 3) + 8 * 8 * 3
    log = (finished[0].workdir / "logs" / "process-0.log").read_text()
    assert f"a step takes {2 * multiply_adds} FLOPs (2 a multiply-add; matmuls and convolutions only" in log
    assert re.search(r"a step needs [1-9][\d.]* KiB on each device: arguments [\d.]*[1-9]", log)


def test_lines_tell_mfu_where_the_peak_of_the_devices_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["jaxtrain.flops"], "device_peak", lambda kind, dtype: 1e6)
    (line,) = train(make_config(duration="4 steps"), tmp_path / "w").history
    assert line["mfu"] == pytest.approx(2 * 1088 / (8 * 1e6 * line["step_secs"]))


def test_a_line_is_the_mean_over_the_steps_since_the_line_before(tmp_path, finished):
    steps = train(make_config(duration="8 steps", log={"every": "1 step"}), tmp_path / "w").history
    lines = [line for line in finished[0].history if line["split"] == "train"]
    for line in lines[:2]:
        for name in ("loss", "accuracy", "grad_norm"):
            values = [step[name] for step in steps[line["step"] - 4 : line["step"]]]
            assert line[name] == pytest.approx(np.mean(values), rel=1e-6)


def test_the_result_says_how_it_ended(finished):
    result = finished[0]
    assert (result.status, result.step, int(result.state.step)) == ("finished", 12, 12)
    status = json.loads((result.workdir / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 12)
    assert saved_steps(result.workdir) == [3, 6, 9, 12]
    assert json.loads((result.workdir / "config.json").read_text())["duration"] == "12 steps"
    assert [entry["step"] for entry in json.loads((result.workdir / "manifest.json").read_text())] == [0]


def test_a_step_is_followed_by_log_checkpoint_evaluation_and_callbacks(finished):
    recorder = finished[1]
    events = [event for event in recorder.events if event[0] != "checkpoint"]
    expected = [("start",)]
    for step in range(1, 13):
        expected += [("log", step)] if step % 4 == 0 else []
        expected += [("eval", step, "validation")] if step in (5, 10, 12) else []
        expected += [("eval", step, "test")] if step == 12 else []
        expected += [("eval", step, "again")] if step in (4, 8, 12) else []
        expected += [("step", step)]
    assert events == [*expected, ("end",)]
    # At step 12 the checkpoint had begun before the evaluation, and the line was on disk before either.
    place = recorder.events.index(("eval", 12, "validation"))
    assert "12" in recorder.saves[place]
    assert recorder.lines[place] == LINES.index(("validation", 12)) + 1
    assert "12" not in recorder.saves[recorder.events.index(("log", 12))]


def test_callbacks_hear_of_each_checkpoint_that_committed_once_and_before_the_end(finished):
    events = finished[1].events
    assert [event[1] for event in events if event[0] == "checkpoint"] == [3, 6, 9, 12]
    assert events[-1] == ("end",)


def test_the_pending_line_is_on_disk_before_the_checkpoint_of_its_step(finished):
    # Otherwise a kill right after the commit would lose a line that no resume makes again.
    assert finished[3] == [(3, 0), (6, 5), (9, 8), (12, 12)]


def test_each_program_is_compiled_once_and_none_after_the_first_step(finished):
    _, recorder, compiled, _ = finished
    names = [name for name, _ in compiled if name != "jit(slice)"]  # Orbax's, of each array that it saves
    assert names.count("jit(train_step)") == 1
    assert names.count("jit(drain)") == 1
    assert names.count("jit(eval_step)") == 2  # of three evaluations
    first = recorder.events.index(("step", 1))
    assert {name for name, when in compiled if when > first} <= {"jit(slice)"}


def test_a_finished_run_started_again_does_nothing(finished):
    workdir = finished[0].workdir
    before = {path: path.read_bytes() for path in workdir.glob("*.json*") if path.name != "status.json"}
    recorder = Recorder()
    result = train(with_evals(callbacks={"recorder": {"type": recorder}}), workdir)
    assert (result.status, result.step, result.state) == ("finished", 12, None)
    assert result.history == finished[0].history
    assert recorder.events == []
    assert before == {path: path.read_bytes() for path in before}


def test_a_stopped_run_resumes_to_the_same_lines_and_the_same_bits(tmp_path, finished):
    # In the middle of the interval from 5 to 8, whose sums are in the checkpoint.
    signals = Signals()
    stop = At(7, lambda run: setattr(signals, "requested", "SIGTERM"))
    result = train(with_evals(callbacks={"stop": {"type": stop}}), tmp_path / "w", signals=signals)
    assert (result.status, result.step) == ("preempted", 7)
    status = json.loads((tmp_path / "w" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("preempted", "SIGTERM")
    assert max(saved_steps(tmp_path / "w")) == 7
    assert split_steps(result.history) == [line for line in LINES if line[1] <= 7]
    assert_same(train(with_evals(), tmp_path / "w"), finished)


def test_a_run_that_was_killed_when_all_was_done_is_finished_by_the_next_start(copy):
    status = json.loads((copy / "status.json").read_text())
    (copy / "status.json").write_text(json.dumps({**status, "state": "running"}))
    assert train(with_evals(), copy).state is None
    assert json.loads((copy / "status.json").read_text())["state"] == "finished"


def test_a_run_stopped_in_its_last_evaluations_only_evaluates(tmp_path, finished):
    signals, recorder = Signals(), Recorder()
    stop = At(12, lambda run: setattr(signals, "requested", "SIGUSR1"), name="validation")
    result = train(with_evals(callbacks={"stop": {"type": stop}}), tmp_path / "w", signals=signals)
    assert (result.status, result.step) == ("preempted", 12)
    assert split_steps(result.history) == LINES[:-2]
    result = train(with_evals(callbacks={"recorder": {"type": recorder}}), tmp_path / "w")
    assert recorder.events == [("start",), ("eval", 12, "test"), ("eval", 12, "again"), ("end",)]
    assert_same(result, finished)


def test_a_callback_may_end_the_run_which_is_then_finished(tmp_path):
    recorder = Recorder()
    config = with_evals(callbacks={"stop": {"type": At(7, lambda run: run.stop("good enough"))}})
    config.callbacks.recorder = {"type": recorder}
    result = train(config, tmp_path / "w")
    assert (result.status, result.step) == ("finished", 7)
    last = [("train", 7), ("validation", 7), ("test", 7), ("again", 7)]
    assert split_steps(result.history) == [*LINES[:3], *last]
    assert result.history[-1]["step"] == max(saved_steps(tmp_path / "w")) == 7
    assert recorder.events[-1] == ("end",)
    status = json.loads((tmp_path / "w" / "status.json").read_text())
    assert (status["state"], status["step"], status["reason"]) == ("finished", 7, "good enough")
    again = train(with_evals(), tmp_path / "w")
    assert (again.status, again.step, again.state) == ("finished", 7, None)
    assert again.history == result.history


def with_best(**changes):
    """A checkpoint and an evaluation after each step, of which the last and the two best are kept."""
    config = make_config(duration="8 steps", evals={"validation": {"every": "1 step"}}, **changes)
    config.optimizer.learning_rate = 0.5  # too much, so that the loss goes up and down
    config.checkpoint = {"every": "1 step", "keep_last": 1, "keep_best": 2, "best_metric": "validation/loss"}
    return config


def best_two(history, last):
    scores = {line["step"]: line["loss"] for line in history if line["split"] == "validation" and line["step"] < last}
    return sorted(scores, key=scores.get)[:2]


def test_the_best_checkpoints_and_the_newest_stay_also_over_a_crash(tmp_path):
    def fail(run):
        raise RuntimeError("out of coffee")

    stops = {"stop": {"type": At(5, fail, name="validation")}}  # its line is written, and the run is gone
    with pytest.raises(RuntimeError, match="out of coffee"):
        train(with_best(callbacks=stops), tmp_path / "w")
    assert len(saved_steps(tmp_path / "w")) == 3
    result = train(with_best(), tmp_path / "w")
    best = best_two(result.history, 8)
    assert min(best) < 5  # one of the launch before, and not what keep_last keeps
    assert saved_steps(tmp_path / "w") == sorted({*best, 8})


def test_a_longer_duration_goes_on_where_the_run_ended_also_in_another_place(copy, caplog):
    result = train(with_evals(duration="14 steps"), copy)
    assert result.step == 14
    assert split_steps(result.history) == [*LINES, *((split, 14) for split in ("train", "validation", "test", "again"))]
    assert "changed since the last launch: duration: 12 steps -> 14 steps" in caplog.text


def test_another_seed_is_another_run_and_fresh_sets_the_old_one_aside(copy, finished):
    with pytest.raises(WorkdirError, match=r"seed: 0 -> 2(.|\n)*--workdir=.*w-2"):
        train(with_evals(seed=2), copy)
    result = train(make_config(seed=2, duration="4 steps"), copy, fresh=True)
    assert split_steps(result.history) == [("train", 4)]
    assert comparable(result)[0] != comparable(finished[0])[0]
    assert saved_steps(copy) == [4]
    assert saved_steps(copy / "set_aside" / "1") == [3, 6, 9, 12]


def test_changed_examples_are_refused_and_can_be_allowed(copy, caplog):
    changed = with_evals(duration="13 steps")
    changed.data.type = rows(seed=5)
    with pytest.raises(WorkdirError, match=r"the content of --config\.data"):
        train(changed, copy)
    assert train(changed, copy, allow_drift=True).step == 13
    assert "allowed to differ from the run so far: the content of --config.data" in caplog.text


def test_a_time_ends_the_run_and_counts_the_launches_before(tmp_path, monkeypatch):
    now = [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    monkeypatch.setattr(
        sys.modules["jaxtrain.train"], "Pace", lambda *args, **keys: Pace(*args, **{**keys, "clock": clock})
    )
    signals = Signals()
    stop = At(3, lambda run: setattr(signals, "requested", "SIGTERM"))
    config = make_config(duration="2 seconds", callbacks={"stop": {"type": stop}})
    assert train(config, tmp_path / "w", signals=signals).step == 3
    now[0] += 1e6  # the time between two launches is not training
    result = train(make_config(duration="2 seconds"), tmp_path / "w")
    assert (result.status, result.step) == ("finished", 4)
    assert train(make_config(duration="2 seconds"), tmp_path / "w").state is None


def test_an_exception_in_a_callback_ends_the_run_and_all_callbacks_hear_of_it(tmp_path):
    def fail(run):
        raise RuntimeError("out of coffee")

    recorder = Recorder()
    config = make_config(callbacks={"fail": {"type": At(2, fail)}, "recorder": {"type": recorder}})
    with pytest.raises(RuntimeError, match="out of coffee"):
        train(config, tmp_path / "w")
    assert recorder.events[-1] == ("error", RuntimeError)
    status = json.loads((tmp_path / "w" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("failed", "RuntimeError: out of coffee")
    assert "Traceback" in (tmp_path / "w" / "logs" / "process-0.log").read_text()


def test_a_loss_that_is_not_finite_ends_the_run_and_the_newest_checkpoint_is_from_before(tmp_path):
    arrays = {name: array.copy() for name, array in rows().arrays.items()}
    arrays["image"][8:16] = np.nan
    config = make_config(checkpoint={"every": "1 step"})
    config.data = {"type": Arrays(arrays=arrays), "shuffle": False}
    with pytest.raises(NonFiniteError, match=r"not finite at step 2: the first gradient"):
        train(config, tmp_path / "w")
    assert json.loads((tmp_path / "w" / "status.json").read_text())["state"] == "nonfinite"
    assert saved_steps(tmp_path / "w") == [1]


# The loop alone.


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    config = make_config(duration="100_000 steps")
    config.log.every = "10 steps"
    with opened_loop(config, tmp_path_factory.mktemp("loop") / "w") as loop:
        make_steps(loop, 20)
        yield loop


def make_steps(loop, num_steps):
    """Make steps none of which is the last of the run, after which everything would be due."""
    start = loop.pace.step
    loop.should_stop = lambda: loop.pace.step >= start + num_steps
    loop.make_steps()
    del loop.should_stop
    assert loop.pace.step == start + num_steps


def lines(loop):
    loop.reporter._file.flush()
    return [line["step"] for line in loop.reporter._file.lines()]


def test_a_log_point_writes_the_interval_before_and_never_its_own(loop):
    make_steps(loop, 10 - loop.pace.step % 10)
    point = loop.pace.step
    assert lines(loop)[-1] == point - 10
    make_steps(loop, 9)
    assert lines(loop)[-1] == point - 10
    make_steps(loop, 1)
    assert lines(loop)[-1] == point


def test_100_steps_transfer_nothing_that_was_not_asked_for(loop):
    with jax.transfer_guard("disallow"):
        make_steps(loop, 100)
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"):
            loop.state.step + np.int32(1)  # what an innocent line in the loop would do


class Pending:
    """What a step returns for its loss: it counts how many are not waited for yet."""

    def __init__(self, in_flight):
        self.in_flight = in_flight
        in_flight.append(self)

    def block_until_ready(self):
        assert self.in_flight.pop(0) is self, "waited for in another order"


def test_at_most_two_steps_are_in_flight(loop, monkeypatch):
    in_flight, most = [], []

    def fake_step(state, batch):
        most.append(len(in_flight))
        return state, {"loss": jaxtrain.Mean(Pending(in_flight), 1.0)}

    monkeypatch.setattr(loop, "train_step", fake_step)
    make_steps(loop, 9)
    assert most == [0, 1, *[2] * 7]
    assert len(in_flight) == 2


WIDTH = 4


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, hidden):
        return hidden + jnp.tanh(hidden) * self.param("scale", nn.initializers.ones, (WIDTH,))


class LinenBlocks(nn.Module):
    @nn.compact
    def __call__(self, hidden):
        for _ in range(24):
            hidden = LinenBlock()(hidden)
        return hidden


class NnxBlock(nnx.Module):
    def __init__(self):
        self.scale = nnx.Param(jnp.ones(WIDTH))

    def __call__(self, hidden):
        return hidden + jnp.tanh(hidden) * self.scale


class NnxBlocks(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([NnxBlock() for _ in range(24)])

    def __call__(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


def calls_per_step(loop, num_steps=200):
    """Calls of Python functions on this thread, log points included."""
    count = [0]

    def profile(frame, event, argument):
        count[0] += event == "call"

    old = sys.getprofile()
    sys.setprofile(profile)
    try:
        make_steps(loop, num_steps)
    finally:
        sys.setprofile(old)
    return count[0] / num_steps


# Measured: 63, with a log point every 100 steps and 109 with one every 10. A step of an nnx model that is split and
# merged outside the compiled program takes thousands.
MOST_CALLS = 80


def test_a_step_of_the_loop_takes_a_bounded_number_of_python_calls(loop):
    assert calls_per_step(loop) < MOST_CALLS + 10 * 10


def test_an_nnx_model_of_24_blocks_takes_as_few_calls_as_its_linen_twin(tmp_path):
    found = []
    for name, model in (("linen", LinenBlocks()), ("nnx", NnxBlocks)):
        config = make_config(duration="100_000 steps")
        config.task.type = Classification(model)
        config.optimizer.type = "optax:sgd"
        config.log.every = "100 steps"
        with opened_loop(config, tmp_path / name, num_devices=1) as loop:
            make_steps(loop, 3)
            found.append(calls_per_step(loop))
            assert len(jax.tree.leaves(loop.state.params)) == 24
    assert max(found) < MOST_CALLS
    assert abs(found[0] - found[1]) < 5


def test_evaluations_use_the_moving_average_and_the_groups_are_told(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="jaxtrain.train")
    config = make_config(duration="4 steps", ema={"decay": 0.5}, evals={"validation": {}})
    config.optimizer.learning_rate = 0.1
    config.param_groups.head = {"match": "^Dense_1/", "learning_rate_factor": 0.5}
    result = train(config, tmp_path / "w")
    state, task = result.state, Classification(MLP((8,), 3))
    batch = {**ROWS.read_many(np.arange(len(ROWS))), "mask": np.ones(len(ROWS), bool)}
    losses = {
        name: float(task.loss(params, {}, batch, jax.random.key(0), False).loss.compute())
        for name, params in (("ema", state.ema), ("params", state.params))
    }
    assert result.history[-1]["loss"] == pytest.approx(losses["ema"], rel=1e-5)
    assert abs(losses["params"] - losses["ema"]) > 1e-3
    assert any("head     2" in record.getMessage() for record in caplog.records)
