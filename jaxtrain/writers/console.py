"""What a person watching sees: one line per log point, and on a terminal a bar that moves in between."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

import numpy as np
from rich.console import Console as RichConsole
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

_logger = logging.getLogger(__name__)

# Lines of metrics.jsonl hold these, too; here they would only be in the way, or come in another form. So would names
# with "/", as "grads/Dense_0/norm".
_HIDDEN = ("learning_rate", "step_secs", "data_wait_secs", "examples_per_sec", "tokens_per_sec")
_HIDDEN_TOTALS = ("examples_seen", "tokens_seen")
_SHOWN_IF_NOT_ZERO = ("skipped", "empty")
_SLOW_DATA = 0.1  # of a step


class Progress(Protocol):
    """How far the run is, as the loop counts it.

    step, secs: of the run so far.   num_steps, max_secs: where it ends, None where that does not end it.
    """

    step: int
    secs: float
    num_steps: int | None
    max_secs: float | None


class Console:
    """Logs the lines; if `stream` is a terminal, keeps a bar below them until `close`."""

    def __init__(self, progress: Progress, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._progress = progress
        self._clock = clock
        self._start = clock()
        self._start_step = progress.step
        self._live: Live | None = None
        stream = stream or sys.stdout
        console = RichConsole(file=stream)
        if stream.isatty() and not console.is_dumb_terminal:
            # The bar looks at the progress by itself, four times a second: the loop does nothing for it.
            self._live = Live(console=console, get_renderable=self._bar, transient=True)
            self._live.start()
            console.show_cursor(True)  # rich hides it, and a run that is killed would leave it hidden

    def write_scalars(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> None:
        _logger.info(
            "%s", self._train_line(step, scalars) if split == "train" else self._eval_line(step, split, scalars)
        )

    def write_text(self, step: int, name: str, text: str) -> None:
        # A text of several lines stands below, so that all of them are indented alike.
        _logger.info("%s  %s:%s%s", self._at(step), name, "\n" if "\n" in text else " ", text)

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        _logger.info("%s  %s: an image, see TensorBoard", self._at(step), name)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def secs_left(self) -> float | None:
        """Seconds to the end of the run, by the pace since this launch began; None if that is not known yet."""
        progress, ends = self._progress, []
        num_steps = progress.step - self._start_step
        if progress.num_steps is not None and num_steps > 0:
            step_secs = (self._clock() - self._start) / num_steps  # with evaluations and all else
            ends.append(step_secs * (progress.num_steps - progress.step))
        if progress.max_secs is not None:
            ends.append(progress.max_secs - progress.secs)
        return max(0.0, min(ends)) if ends else None

    def _train_line(self, step: int, scalars: Mapping[str, float]) -> str:
        parts = [self._at(step), *shown_metrics(scalars)]
        if "learning_rate" in scalars:
            parts.insert(2 if "loss" in scalars else 1, f"lr {scalars['learning_rate']:.2e}")
        if "tokens_per_sec" in scalars:
            parts.append(f"{_count(scalars['tokens_per_sec'])} tokens/s")
        elif "examples_per_sec" in scalars:
            parts.append(f"{_count(scalars['examples_per_sec'])} examples/s")
        waiting = scalars.get("data_wait_secs", 0.0) / max(scalars.get("step_secs", 0.0), 1e-9)
        if waiting > _SLOW_DATA:
            parts.append(f"waiting for data {waiting:.0%}")
        left = self.secs_left()
        if left is not None:
            parts.append(f"eta {_duration(left)}")
        return "  ".join(parts)

    def _eval_line(self, step: int, split: str, scalars: Mapping[str, float]) -> str:
        return "  ".join([self._at(step), split, *shown_metrics(scalars)])

    def _at(self, step: int) -> str:
        total = self._progress.num_steps
        return f"step {step}" if total is None else f"step {step:>{len(str(total))}}/{total}"

    def _bar(self) -> Table:
        progress, left = self._progress, self.secs_left()
        if progress.num_steps is not None:
            total, done = float(progress.num_steps), float(progress.step)
        else:
            total, done = progress.max_secs or 1.0, progress.secs
        row = Table.grid(padding=(0, 1))
        row.add_row(
            self._at(progress.step),
            ProgressBar(total=total, completed=done, width=40),
            "" if left is None else f"eta {_duration(left)}",
        )
        return row


def shown_metrics(scalars: Mapping[str, float]) -> list[str]:
    """Give the numbers of a line that a person follows, as "loss 1.716", the loss first."""
    shown = []
    for name in sorted(scalars, key=lambda name: name != "loss"):  # the loss first, the others as they come
        is_zero = name in _SHOWN_IF_NOT_ZERO and not scalars[name]
        if name not in (*_HIDDEN, *_HIDDEN_TOTALS) and "/" not in name and not is_zero:
            value = scalars[name]
            shown.append(f"{name} {value}" if isinstance(value, int) else f"{name} {value:.4g}")
    return shown


def _count(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _duration(secs: float) -> str:
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"
