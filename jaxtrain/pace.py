"""How far a run is, and what is due."""

import time
from collections.abc import Callable

from jaxtrain.duration import Every


class Pace:
    """Counts steps and seconds of training, and decides what is due by the one rule there is.

    num_steps: the last step, None when only time ends the run.   max_secs: its time, None when only steps do.
    step, secs, previous_secs: where the run begins this time, and the seconds when it made the step before; seconds of
    earlier launches count. is_over: this was the last step. All are for reading.
    """

    def __init__(
        self,
        num_steps: int | None,
        max_secs: float | None,
        *,
        step: int = 0,
        secs: float = 0.0,
        previous_secs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.num_steps = num_steps
        self.step = step
        self.secs = secs
        self.max_secs = max_secs
        self.previous_secs = secs if previous_secs is None else previous_secs
        self._clock = clock
        self._origin = clock() - secs
        self.is_over = self._is_over()

    def advance(self) -> int:
        """Count a step that was made. Returns its number."""
        self.step += 1
        self.previous_secs, self.secs = self.secs, self._clock() - self._origin
        self.is_over = self._is_over()
        return self.step

    def _is_over(self) -> bool:
        by_steps = self.num_steps is not None and self.step >= self.num_steps
        return by_steps or (self.max_secs is not None and self.secs >= self.max_secs)

    def due(self, every: Every) -> bool:
        """Is it time, after the step just counted? After the last step it always is."""
        return self.is_over or every.due(self.step, self.secs, self.previous_secs)
