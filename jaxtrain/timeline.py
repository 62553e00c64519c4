"""Where the time before the first step went."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path


def process_age_secs() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        # Field 22 of stat; the name in field 2 may hold spaces and brackets.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    return 0.0


class Timeline:
    """A stopwatch of phases: each `mark` names the time since the one before.

    The first phase begins with the process, so it holds what Python and the imports took.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, age_secs: float | None = None):
        """`age_secs` is for how long the first phase lasts already, by default the age of the process."""
        self._clock = clock
        self._last = clock() - (process_age_secs() if age_secs is None else age_secs)
        self._secs: dict[str, float] = {}

    @property
    def secs(self) -> dict[str, float]:
        """Seconds of each phase, in order."""
        return dict(self._secs)

    def mark(self, phase: str) -> None:
        """End `phase` here. A name used again adds to it."""
        now = self._clock()
        self._secs[phase] = self._secs.get(phase, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {secs:.1f} s" for phase, secs in self._secs.items())
        return f"first step after {sum(self._secs.values()):.1f} s: {phases}"
