"""The lines of a run: what a log point keeps on the device, when it becomes numbers, and which writers show these.

A log point must not wait for the device, so it reads what the log point before it kept. Whatever is still kept is
written before a checkpoint or an evaluation, which wait for the device anyway, and at the end.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from jaxtrain.build import build
from jaxtrain.config import Config, to_dict
from jaxtrain.evaluate import compute
from jaxtrain.files import redacted
from jaxtrain.step import Counters, Interval
from jaxtrain.workdir import Workdir
from jaxtrain.writers import Writer
from jaxtrain.writers.background import Background, close_all
from jaxtrain.writers.console import Console, Progress
from jaxtrain.writers.jsonl import MetricsFile
from jaxtrain.writers.notebook import Notebook, is_notebook
from jaxtrain.writers.tensorboard import TensorBoard


@dataclasses.dataclass(frozen=True)
class _Kept:
    """One log point, not yet read from the device."""

    step: int
    interval: Interval
    counters: Counters
    scalars: Mapping[str, Any]
    host: Mapping[str, Any]


class StepTimer:
    """Takes the time of steps, and of their waiting for data, without what is neither (evaluations, compilation)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._waited_before = self._waited = 0.0
        self._restart()

    def _restart(self) -> None:
        self._start = self._clock()
        self._paused = 0.0
        self._num_steps = 0
        self._waited_before = self._waited

    def count_step(self, waited_secs: float) -> None:
        """Count a step. `waited_secs`: the time that the run has waited for data in all."""
        self._num_steps += 1
        self._waited = waited_secs

    def pause(self, secs: float) -> None:
        """Leave out time that was spent on something else than steps."""
        self._paused += secs

    def take(self) -> dict[str, float]:
        """Seconds per step, and of them waiting for data, since the last call."""
        steps = max(self._num_steps, 1)
        secs = max(self._clock() - self._start - self._paused, 1e-9)
        taken = {"step_secs": secs / steps, "data_wait_secs": (self._waited - self._waited_before) / steps}
        self._restart()
        return taken


class Reporter:
    """Writes lines to `metrics.jsonl` and to every other writer.

    start_step: where the run begins; lines of later steps, which a launch before had written, are dropped.
    writes: False keeps account of the lines, and leaves writing them to another process.
    peak_step_secs: what a step would take if the devices computed at their peak; None leaves `mfu` out.
    `on_log(step, scalars)` hears of each train line.
    """

    def __init__(
        self,
        metrics_path: Path,
        writers: Iterable[Writer],
        *,
        batch_size: int,
        tokens_per_example: int | None,
        start_step: int,
        on_log: Callable[[int, Mapping[str, Any]], None],
        peak_step_secs: float | None = None,
        writes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.timer = StepTimer(clock)
        self.last_counters: Counters | None = None  # of the newest line that was read
        self._file = MetricsFile(metrics_path, writes=writes)
        self._file.cut_after(start_step)
        self._writers = list(writers)
        self._batch_size = batch_size
        self._tokens_per_example = tokens_per_example
        self._on_log = on_log
        self._peak_step_secs = peak_step_secs
        self._kept: _Kept | None = None

    def keep(
        self,
        step: int,
        interval: Interval,
        counters: Counters,
        examples_seen: int,
        bad_examples: int = 0,
        scalars: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Remember a log point, and write the one before it. Arrays given here must not be donated later.

        scalars: of callbacks, on the device or not.
        """
        rates = self.timer.take()
        rates["examples_per_sec"] = self._batch_size / rates["step_secs"]
        host: dict[str, Any] = {**rates, "examples_seen": examples_seen}
        if bad_examples:
            host["bad_examples"] = bad_examples
        if self._tokens_per_example:
            host["tokens_per_sec"] = rates["examples_per_sec"] * self._tokens_per_example
            host["tokens_seen"] = examples_seen * self._tokens_per_example
        if self._peak_step_secs is not None:
            host["mfu"] = self._peak_step_secs / rates["step_secs"]
        kept, self._kept = self._kept, _Kept(step, interval, counters, scalars, host)
        self._write(kept)

    def flush(self) -> None:
        """Write what is kept, and bring every line to the disk."""
        kept, self._kept = self._kept, None
        self._write(kept)
        self._file.flush()

    def has_line(self, split: str, step: int) -> bool:
        """Was this line written, or is it kept for writing?"""
        is_kept = self._kept is not None and (split, step) == ("train", self._kept.step)
        return is_kept or self._file.has(split, step)

    @property
    def unwritten(self) -> tuple[tuple[str, int], ...]:
        """(split, step) of the lines that a full disk keeps in memory."""
        return self._file.unwritten

    def write_eval(self, step: int, name: str, scalars: Mapping[str, Any]) -> None:
        """Write the line of an evaluation, after the train lines up to its step."""
        self.flush()
        self._emit(step, name, scalars)
        self._file.flush()

    def write_text(self, step: int, name: str, text: str) -> None:
        """Show a text in every writer; `metrics.jsonl` holds numbers only."""
        for writer in self._writers:
            writer.write_text(step, name, text)

    def close(self) -> None:
        self._file.close()
        close_all(self._writers)

    def _write(self, kept: _Kept | None) -> None:
        if kept is None:
            return
        interval, counters, extra = jax.device_get((kept.interval, kept.counters, dict(kept.scalars)))
        self.last_counters = counters
        scalars = compute(interval.metrics)
        if interval.num_steps == 0:  # every batch was skipped or empty: there is no mean to tell
            scalars = dict.fromkeys(scalars, float("nan"))
        scalars |= {"skipped": int(counters.skipped), "empty": int(counters.empty), **kept.host}
        scalars |= {name: float(value) for name, value in extra.items()}
        self._emit(kept.step, "train", scalars)
        self._on_log(kept.step, scalars)

    def _emit(self, step: int, split: str, scalars: Mapping[str, Any]) -> None:
        now = time.time()
        self._file.write(step, split, scalars, now)
        for writer in self._writers:
            writer.write_scalars(step, split, scalars, now)


def open_writers(config: Config, workdir: Workdir, progress: Progress) -> list[Writer]:
    """Open what shows the lines of a run that goes on from `progress.step`, beside `metrics.jsonl`.

    Only what a person watches may hold the loop up. Of several processes the first one shows them; the others have them
    in their logs.
    """
    opened: list[Writer] = [Console(progress)]
    if not workdir.is_first:
        return opened
    if is_notebook():
        opened.append(Notebook(progress))
    if config.log.tensorboard:
        purge_step = progress.step + 1
        opened.append(Background("TensorBoard", lambda: TensorBoard(workdir.tensorboard_dir, purge_step)))
    for name, spec in config.log.trackers.items():
        make = functools.partial(_tracker, config, workdir, spec, f"log.trackers.{name}")
        opened.append(Background(f"tracker {name}", make))
    return opened


def _tracker(config: Config, workdir: Workdir, spec: Any, key: str) -> Writer:
    workdir.trackers_dir.mkdir(mode=0o700, exist_ok=True)
    runtime = {"workdir": workdir.path, "run_id": _run_id(workdir), "name": config.name}
    return build(spec, key, **runtime, config=redacted(to_dict(config)))


def _run_id(workdir: Workdir) -> str:
    """The id of the run in every tracker: that of its first launch, so that a resumed run goes on in the same."""
    launches = workdir.read_manifest()
    return launches[0]["run_id"] if launches else workdir.run_id
