"""Looking into a run: traces of a few steps, what a step holds in memory, and what held it when there was no more.

Nothing here changes a number, and nothing here ends a run.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxtrain.config import Config, schema
from jaxtrain.errors import OutOfMemoryError
from jaxtrain.preemption import Signals

_logger = logging.getLogger(__name__)
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


class Profiler:
    """Traces the steps that the config names, and some more on each SIGUSR2 (`signals.num_profile_requests`).

    A profiler that fails is told once and not tried again.
    """

    def __init__(self, directory: Path, profile: schema.Profile, signals: Signals):
        """directory: the traces go below it, where TensorBoard and XProf look for them."""
        start, stop = map(int, profile.steps.split(":")) if profile.steps else (0, 0)
        self._window = range(start, stop)
        self._num_steps = profile.num_steps
        self._directory = directory
        self._signals = signals
        self._num_answered = 0
        self._stop: int | None = None  # the first step that is not traced any more, while there is a trace
        self._mark: Any = None
        self._has_failed = False

    def before_step(self, step: int, newest: Any) -> None:
        """Begin or end a trace where it is time to. newest: an array that is ready when the last step made is."""
        if self._stop is not None:
            self._end_mark()
            if step >= self._stop:
                jax.block_until_ready(newest)
                self.close()
        requested = self._signals.num_profile_requests > self._num_answered
        if self._stop is None and (requested or step in self._window) and not self._has_failed:
            self._num_answered = self._signals.num_profile_requests
            self._begin(step, self._window.stop if step in self._window else step + self._num_steps)
        if self._stop is not None:
            self._mark = jax.profiler.StepTraceAnnotation("train", step_num=step)
            self._mark.__enter__()

    def close(self) -> None:
        """End the trace, if there is one."""
        if self._stop is None:
            return
        self._end_mark()
        self._stop = None
        if self._tried("end", jax.profiler.stop_trace):
            _logger.info("the trace is in %s", self._directory)

    def _begin(self, step: int, stop: int) -> None:
        if self._tried("begin", jax.profiler.start_trace, str(self._directory)):
            self._stop = stop
            _logger.info("tracing steps %d to %d", step, stop - 1)

    def _end_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def _tried(self, what: str, function: Any, *arguments: Any) -> bool:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001  a full disk, another trace: a tool's failure is not the run's
            self._has_failed = True
            _logger.warning("the profiler could not %s a trace, and will not be tried again: %s", what, error)
        return not self._has_failed


def describe_memory(compiled: Any) -> str:
    """Say what a compiled program holds on each device."""
    sizes = compiled.memory_analysis()
    if sizes is None:
        return "its memory is not known here"
    arguments, outputs = sizes.argument_size_in_bytes, sizes.output_size_in_bytes
    aliased, temporary = sizes.alias_size_in_bytes, sizes.temp_size_in_bytes
    total = arguments + outputs - aliased + temporary
    unit, size = next((each for each in _UNITS if total >= each[1]), _UNITS[-1])
    return (
        f"{total / size:.1f} {unit} on each device: arguments {arguments / size:.1f}, outputs {outputs / size:.1f}, of "
        f"which {aliased / size:.1f} in the place of arguments, temporary {temporary / size:.1f}"
    )


@contextlib.contextmanager
def explained_exhaustion(directory: Path, config: Config) -> Iterator[None]:
    """Turn JAX's error for a device without room into OutOfMemoryError, which says what was in memory and what to try.

    directory: where the memory profile is written, for pprof.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        microbatches = 2 * config.accumulation.microbatches
        raise OutOfMemoryError(
            f"A device ran out of memory: {str(error).splitlines()[0]}\n{_written_profile(directory)}\n"
            f"To need less: --config.accumulation.microbatches={microbatches} (the same numbers from smaller slices of "
            "the batch), rematerialisation in the model (for the Transformer --config.task.model.remat=full), or "
            "--config.mesh.fsdp= of more devices, which share parameters and optimizer state out among them."
        ) from error


def _written_profile(directory: Path) -> str:
    path = directory / "out_of_memory.prof"
    try:
        directory.mkdir(exist_ok=True)
        jax.profiler.save_device_memory_profile(str(path))
    except Exception as error:  # noqa: BLE001  the error that is being told matters more
        return f"What was in memory could not be written to {path}: {error}"
    return f"What was in memory is in {path}; show it with: pprof -top {path}"
