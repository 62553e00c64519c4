"""What a run of one process needs of agreement, which is nothing: the interface of the other kind too (crew.py)."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Stop(NamedTuple):
    """Why all processes stop, and whether the same command is to go on from there."""

    reason: str
    is_resumable: bool


class Alone:
    """A run of one process: it agrees with itself. The other kind is `Crew`."""

    index = 0
    num_processes = 1
    members: Sequence[Mapping[str, Any]] = ()  # where each process of several runs, by number
    stop: Stop | None = None
    on_loss: Callable[[str], None]  # called once, in another thread, if another process is lost: to end this one

    def gather(self, name: str, value: Any) -> list[Any]:
        """Give this value of every process, by number. All of them must call it, in the same order of names.

        value: anything JSON takes. Raises StoppedError when one is lost, or too late.
        """
        return [value]

    def from_first(self, name: str, function: Callable[[], Any]) -> Any:
        """Call `function` in process 0, and give its result, or raise its JaxtrainError, in all of them."""
        return function()

    def should_stop(self, interrupted: str | None, ending: str | None = None) -> bool:
        """Say whether this process has come to the end that all agreed on. Asks for one if it has a reason.

        interrupted, ending: the reason, if the run is to go on another time, or if it is over.
        """
        if interrupted and not (self.stop and self.stop.is_resumable):
            self.stop = Stop(interrupted, True)
        elif ending and not self.stop:
            self.stop = Stop(ending, False)
        return self.stop is not None

    @property
    def is_interrupted(self) -> bool:
        """The agreed end came, and nothing more is to be done in this launch."""
        return self.stop is not None and self.stop.is_resumable

    def begin_turn(self, is_step: bool) -> bool:
        """Count one more program that all run together, a step or not. False: it lies beyond the end, do not run it.

        After a step that ends the run, evaluations go on.
        """
        return True

    def reset(self) -> None:
        """Begin another run."""
        self.stop = None

    def clock(self) -> float:
        """Seconds that only grow: what process 0's clock shows at its call of the same number."""
        return time.monotonic()

    def explain(self, error: BaseException) -> BaseException:
        """Give what an error really was: that another process is lost, where a program failed for it."""
        return error

    def fail(self, reason: str) -> None:
        """Tell the others that this process ends, so that none of them waits for it."""
