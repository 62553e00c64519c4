"""Traces change nothing and end nothing; a device without room is told with what to do."""

import logging
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.compiling import compile_ahead
from jaxtrain.config import schema
from jaxtrain.errors import EXIT_ERROR, OutOfMemoryError
from jaxtrain.preemption import Signals
from jaxtrain.profiling import Profiler, describe_memory
from jaxtrain.train import train
from tests.classifier import At, make_config, without_times


@pytest.fixture
def traced(monkeypatch):
    """Instead of tracing, note which steps would have been traced: a list for each trace."""
    traces, open_traces = [], []

    class Mark:
        def __init__(self, name, step_num):
            self.step = step_num

        def __enter__(self):
            open_traces[-1].append(self.step)

        def __exit__(self, *_):
            pass

    def stop():
        traces.append(open_traces.pop())

    monkeypatch.setattr(jax.profiler, "start_trace", lambda directory: open_traces.append([]))
    monkeypatch.setattr(jax.profiler, "stop_trace", stop)
    monkeypatch.setattr(jax.profiler, "StepTraceAnnotation", Mark)
    return traces


def go_through(numbers, directory, requests=(), **config):
    """Go through steps with a profiler, which is asked for a trace before those in `requests`."""
    signals = Signals()
    profiler = Profiler(directory, schema.Profile(**config), signals)
    for step in numbers:
        signals.num_profile_requests += step in requests
        profiler.before_step(step, jnp.zeros(()))
    profiler.close()


@pytest.mark.parametrize(
    ("first", "last", "steps", "requests", "expected"),
    [
        (1, 9, "3:6", (), [[3, 4, 5]]),
        (5, 9, "3:6", (), [[5]]),  # resumed in the middle
        (1, 4, "3:6", (), [[3, 4]]),  # over before
        (6, 9, "3:6", (), []),
        (1, 9, "", (), []),
        (1, 9, "", (2, 7), [[2, 3], [7, 8]]),
        (1, 9, "3:6", (4,), [[3, 4, 5], [6, 7]]),  # one trace at a time
        (1, 9, "3:6", (2,), [[2, 3], [4, 5]]),  # what the window named is traced too
    ],
)
def test_the_steps_of_the_config_and_some_after_each_request_are_traced(
    traced, tmp_path, first, last, steps, requests, expected
):
    go_through(range(first, last + 1), tmp_path, requests, steps=steps, num_steps=2)
    assert traced == expected


@pytest.mark.parametrize("broken", ["start_trace", "stop_trace"])
def test_a_profiler_that_fails_is_told_once(traced, tmp_path, caplog, monkeypatch, broken):
    def fail(*_):
        raise RuntimeError("only one profile may be run at a time")

    monkeypatch.setattr(jax.profiler, broken, fail)
    go_through(range(1, 20), tmp_path, (2, 8, 12), num_steps=2)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith(f"the profiler could not {'begin' if broken == 'start_trace' else 'end'}")
    assert "only one profile" in record.getMessage()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(make_config(duration="6 steps"), tmp_path_factory.mktemp("plain") / "w")


def assert_same(ours, theirs):
    assert [without_times(line) for line in ours.history] == [without_times(line) for line in theirs.history]
    for a, b in zip(jax.tree.leaves(ours.state.params), jax.tree.leaves(theirs.state.params), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_run_that_is_traced_gives_the_same_bits(tmp_path, plain):
    result = train(make_config(duration="6 steps", profile={"steps": "2:4"}), tmp_path / "w")
    assert len(list((tmp_path / "w" / "profile").rglob("*.xplane.pb"))) == 1
    assert not (plain.workdir / "profile").exists()
    assert_same(result, plain)


def test_sigusr2_traces_steps_and_the_run_goes_on(tmp_path, plain, traced):
    callbacks = {"ask": {"type": At(3, lambda run: os.kill(os.getpid(), signal.SIGUSR2))}}
    result = train(make_config(duration="6 steps", callbacks=callbacks, profile={"num_steps": 2}), tmp_path / "w")
    assert result.status == "finished"
    assert traced == [[4, 5]]
    assert_same(result, plain)


def test_a_profile_that_cannot_be_written_is_not_the_end(tmp_path, plain, caplog):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "profile").touch()  # a file where the directory should be
    result = train(make_config(duration="6 steps", profile={"steps": "2:4"}), tmp_path / "w")
    assert "the profiler could not" in caplog.text
    assert_same(result, plain)


def too_much(run):
    jnp.ones(1 << 47, jnp.int8).block_until_ready()


def test_a_device_without_room_is_told_with_what_held_it_and_what_to_try(tmp_path):
    config = make_config(callbacks={"fill": {"type": At(2, too_much)}}, accumulation={"microbatches": 1})
    with pytest.raises(OutOfMemoryError) as raised:
        train(config, tmp_path / "w")
    message = str(raised.value)
    assert message.startswith("A device ran out of memory: RESOURCE_EXHAUSTED: Out of memory allocating")
    for word in ("--config.accumulation.microbatches=2", "remat", "--config.mesh.fsdp="):
        assert word in message
    profile = tmp_path / "w" / "profile" / "out_of_memory.prof"
    assert profile.stat().st_size > 0
    assert str(profile) in message
    assert raised.value.exit_code == EXIT_ERROR
    assert "OutOfMemoryError" in (tmp_path / "w" / "status.json").read_text()


def test_other_errors_of_jax_are_left_as_they_are(tmp_path):
    def fail(run):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: something else"):
        train(make_config(callbacks={"fail": {"type": At(2, fail)}}), tmp_path / "w")
    assert not (tmp_path / "w" / "profile").exists()


@pytest.mark.parametrize(("elements", "told"), [(64, "0.5 KiB"), (2**11, "16.0 KiB"), (2**28, "2.0 GiB")])
def test_memory_is_told_in_the_unit_that_fits(elements, told):
    array = jax.ShapeDtypeStruct((elements,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert describe_memory(compile_ahead(lambda x: x + 1, array)).startswith(f"{told} on each device: ")


def test_memory_is_told_in_mebibytes_and_what_is_donated_once():
    square = jax.ShapeDtypeStruct((512, 512), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    kept = describe_memory(compile_ahead(lambda x: x + 1, square))
    donated = describe_memory(compile_ahead(lambda x: x + 1, square, donate_argnums=(0,)))
    assert kept.startswith("2.0 MiB on each device: arguments 1.0, outputs 1.0, of which 0.0 in the place of arguments")
    assert donated.startswith("1.0 MiB on each device: arguments 1.0, outputs 1.0, of which 1.0 in the place of")
