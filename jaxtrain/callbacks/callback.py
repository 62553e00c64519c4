"""The Callback protocol, and the view of a run that callbacks get."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtrain.build import build
from jaxtrain.config import Config
from jaxtrain.experiment import Experiment
from jaxtrain.models.logical import Layout
from jaxtrain.step import TrainState
from jaxtrain.typing import Batch
from jaxtrain.writers.jsonl import read_lines

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Run:
    """A run, for reading. Only `stop` and `add_scalars` have an effect.

    state: the newest TrainState. Its arrays are consumed by the next step: copy what you keep.
    source: the training examples.   eval_sources: the examples of each eval, by its name.
    num_steps: the last step; None when the duration is a time.
    layout: what a model's names of dims stand for on the run's mesh; programs of a callback's own may use it with
    `jaxtrain.models.logical.laid_out`.
    write_text: shows a text in the log and the other writers, given (step, name, text).
    pause: leaves seconds that a callback took out of the time of the steps.
    eval_metrics: the names of the numbers of each eval, by its name, from `on_start` on.
    scalars: what `add_scalars` was given since this step began.
    """

    config: Config
    workdir: Path
    task: Any
    source: Any
    eval_sources: Mapping[str, Any]
    num_steps: int | None
    state: TrainState
    layout: Layout | None = None
    stop_reason: str | None = None
    write_text: Callable[[int, str, str], None] = lambda step, name, text: None
    pause: Callable[[float], None] = lambda secs: None
    eval_metrics: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    scalars: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def stop(self, reason: str) -> None:
        """Ask the run to end after this step, as if its duration were over."""
        self.stop_reason = self.stop_reason or reason

    def add_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Add numbers to the train line of the step that begins, if that has one; to be called in `on_batch`.

        They may be on the device: they are read when the line is written. Names with "/" are not shown on the console.
        """
        self.scalars = {**self.scalars, **scalars}

    def history(self, split: str) -> list[dict[str, Any]]:
        """Give the lines of metrics.jsonl of "train" or an eval, oldest first, those of earlier launches too."""
        return list(read_lines(self.workdir / "metrics.jsonl", split))


class Callback:
    """Override what you need. A callback reads; it never edits the state. An exception in one ends the run.

    `on_start`; then for each step `on_batch`, the step itself, the log point, the checkpoint, the evaluations in the
    order of the config (each with `on_eval`), `on_step`; after the last step `on_end`, or `on_error`. What happens in
    the background is told when it is known: `on_log` at the log point after, or when a checkpoint or an evaluation
    brings the line to the disk; `on_checkpoint` before the log point of the step that learns of it. Several callbacks
    are called in the order of the config. `scalars` are the numbers of the line just written to metrics.jsonl.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step; after a resume too."""

    def on_batch(self, run: Run, step: int, batch: Batch) -> None:
        """Before each step, with the batch that it takes, [k, batch / k, ...]. `run.state` is the state before it."""

    def on_step(self, run: Run, step: int) -> None:
        """After each step. The device may still be busy with it: reading `run.state` waits."""

    def on_log(self, run: Run, step: int, scalars: Mapping[str, Any]) -> None:
        """After the train line of `step` was written, which is up to one log point later."""

    def on_checkpoint(self, run: Run, step: int) -> None:
        """After the checkpoint of `step` has committed."""

    def on_eval(self, run: Run, step: int, name: str, scalars: Mapping[str, Any]) -> None:
        """After an evaluation's line was written."""

    def on_end(self, run: Run) -> None:
        """After the last step, its checkpoint and its evaluations. Not when the run stopped early."""

    def on_error(self, run: Run, error: BaseException) -> None:
        """When an exception ends the run."""


class Callbacks:
    """The callbacks of a run, called in the order of the config."""

    def __init__(self, experiment: Experiment, workdir: Path, state: TrainState):
        self.run = Run(
            config=experiment.config,
            workdir=workdir,
            task=experiment.task,
            source=experiment.source,
            eval_sources={evaluation.name: evaluation.source for evaluation in experiment.evaluations},
            num_steps=experiment.num_steps,
            state=state,
            layout=experiment.layout,
        )
        self._all: tuple[Callback, ...] = tuple(
            build(spec, f"callbacks.{name}", config=experiment.config, experiment=experiment)
            for name, spec in experiment.config.callbacks.items()
        )
        self._steppers = tuple(c for c in self._all if type(c).on_step is not Callback.on_step)
        self._batchers = tuple(c for c in self._all if type(c).on_batch is not Callback.on_batch)

    def on_start(self) -> None:
        for callback in self._all:
            callback.on_start(self.run)

    def on_batch(self, step: int, batch: Batch) -> None:
        self.run.scalars = {}
        for callback in self._batchers:
            callback.on_batch(self.run, step, batch)

    def on_step(self, step: int) -> None:
        for callback in self._steppers:
            callback.on_step(self.run, step)

    def on_log(self, step: int, scalars: Mapping[str, Any]) -> None:
        for callback in self._all:
            callback.on_log(self.run, step, scalars)

    def on_checkpoint(self, step: int) -> None:
        for callback in self._all:
            callback.on_checkpoint(self.run, step)

    def on_eval(self, step: int, name: str, scalars: Mapping[str, Any]) -> None:
        for callback in self._all:
            callback.on_eval(self.run, step, name, scalars)

    def on_end(self) -> None:
        for callback in self._all:
            callback.on_end(self.run)

    def on_error(self, error: BaseException) -> None:
        for callback in self._all:
            try:
                callback.on_error(self.run, error)
            except Exception:  # the run ends by the first error, not by one in telling of it
                _logger.exception("in on_error of %s", type(callback).__name__)
