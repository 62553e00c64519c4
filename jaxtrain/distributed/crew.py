"""What the processes of a run agree on: values they exchange, the turn after which they stop, the time, and losses.

None of it is a program on the devices, and no step waits for it. All processes make the same programs in the same
order, so a program is a *turn*, and its number means the same to all of them: a train step, or the evaluation of one
batch. Where one wants to stop, all others are held at the turn they have begun, the largest of their numbers is the
last, and those who are behind go on up to it.
"""

import collections
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxtrain.distributed.alone import Alone, Stop
from jaxtrain.distributed.service import MAX_LINE
from jaxtrain.errors import JaxtrainError, RefusedError, StoppedError

_logger = logging.getLogger(__name__)

_GRACE_SECS = 2.0  # in which a process may tell its own story when another one failed


class Crew(Alone):
    """This process among several (join.py)."""

    def __init__(self, connection: socket.socket, about: Mapping[str, Any], silence_secs: float):
        """about: index, num_processes, node, host and pid of this process."""
        self.index, self.num_processes = about["index"], about["num_processes"]
        self.members = ()  # until all have come
        self.on_loss = lambda reason: None
        self._connection = connection
        self._silence_secs = silence_secs
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._gathered: dict[str, list[Any]] = {}
        self._ticks: collections.deque[float] = collections.deque()
        self._refused: str | None = None
        self._lost: str | None = None
        self._begun = 0
        self._limit: float = float("inf")  # the last turn that may begin
        self._is_held = False  # until that is known
        self._asked: Stop | None = None
        self._has_left = False
        self._send({"hello": about})
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=f"crew{work.__name__}", daemon=True).start()

    def gather(self, name: str, value: Any) -> list[Any]:
        self._send({"put": name, "value": value})
        return self._wait(lambda: self._gathered.pop(name, None))

    def from_first(self, name: str, function: Callable[[], Any]) -> Any:
        answer: dict[str, Any] | None = None
        if self.index == 0:
            try:
                answer = {"value": function()}
            except JaxtrainError as error:
                self.gather(name, {"error": str(error), "code": error.exit_code})
                raise
        answer = self.gather(name, answer)[0]
        if "error" in answer:
            raise _as_told(answer["code"], answer["error"])
        return answer["value"]

    @property
    def is_whole(self) -> bool:
        """Nobody is lost or refused, and this process has not failed."""
        return self._lost is None and self._refused is None and not self._has_left

    def wait_for_all(self) -> None:
        """Return when every process has come. Raises StoppedError or RefusedError."""
        self._wait(lambda: self.members)

    def should_stop(self, interrupted: str | None, ending: str | None = None) -> bool:
        if interrupted or ending:
            self._ask(Stop(f"{interrupted or ending} in process {self.index}", interrupted is not None))
        return self.stop is not None and not self._is_held and self._begun >= self._limit

    def _ask(self, stop: Stop) -> None:
        with self._changed:
            for known in (self._asked, self.stop):
                if known is not None and known.is_resumable >= stop.is_resumable:
                    return
            self._asked, self._is_held = stop, True  # not a turn more: where all ask, all stop at once
        self._send({"stop": stop.reason, "is_resumable": stop.is_resumable})

    @property
    def is_interrupted(self) -> bool:
        return super().is_interrupted and not self._is_held and self._begun >= self._limit

    def begin_turn(self, is_step: bool) -> bool:
        with self._changed:
            while True:
                goes_on = not is_step and self.stop is not None and not self.stop.is_resumable
                if not self._is_held and (goes_on or self._begun < self._limit):
                    self._begun += 1
                    return True
                if not self._is_held:
                    return False
                self._raise_if_over()
                self._changed.wait()

    def reset(self) -> None:
        with self._changed:
            self.stop = self._asked = None
            self._is_held, self._limit = False, float("inf")
        self.gather("run", None)

    def clock(self) -> float:
        if self.index == 0:
            now = time.monotonic()
            self._send({"tick": now})
            return now
        return self._wait(lambda: self._ticks.popleft() if self._ticks else None)

    def explain(self, error: BaseException) -> BaseException:
        if isinstance(error, JaxtrainError | KeyboardInterrupt):
            return error
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, _GRACE_SECS)
        return error if self._lost is None else StoppedError(f"{self._lost}. The same command resumes the run.")

    def fail(self, reason: str) -> None:
        self._has_left = True
        with contextlib.suppress(StoppedError):
            self._send({"failed": f"process {self.index} ended: {reason}"})

    def leave(self) -> None:
        """Part from the others: from now on the end of this process is no loss to them."""
        self._has_left = True
        with contextlib.suppress(StoppedError):
            self._send({"left": True})

    def close(self) -> None:
        """End the connection."""
        self._has_left = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _wait(self, get: Callable[[], Any]) -> Any:
        """Return the first thing that `get` gives which is not empty."""
        with self._changed:
            while not (result := get()):
                self._raise_if_over()
                self._changed.wait()
            return result

    def _raise_if_over(self) -> None:
        if self._refused is not None:
            raise RefusedError(f"The processes do not fit together: {self._refused}.")
        if self._lost is not None:
            raise StoppedError(f"{self._lost}. The same command resumes the run.")

    def _send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        assert len(data) <= MAX_LINE, f"{len(data)} bytes are too long for one message"
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError as error:
            self._lose(f"process 0 is lost: {error.strerror}")
            raise StoppedError(f"{self._lost}. The same command resumes the run.") from error

    def _beat(self) -> None:
        while not self._has_left and self._lost is None:
            time.sleep(min(5.0, self._silence_secs / 4))
            with contextlib.suppress(StoppedError):
                self._send({"beat": True})

    def _listen(self) -> None:
        self._connection.settimeout(self._silence_secs)
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
            how = "its connection ended"
        except TimeoutError:
            how = f"nothing was heard of it for {self._silence_secs:g} s"
        except (OSError, ValueError) as error:
            how = f"{error}"
        if not self._has_left:
            # JAX ends this process within a tenth of a second when its own connection to process 0 breaks.
            self._lose(f"process 0 is lost: {how}", grace_secs=0.0)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "waiting" in message:
            absent, present = ", ".join(message["absent"]), ", ".join(message["present"])
            purpose = _PURPOSES.get(message["waiting"], message["waiting"])
            _logger.info("waiting for %s to %s (%d s)", absent, purpose, message["secs"])
            if message["late"]:
                num_expected = len(message["absent"]) + len(message["present"])
                self._lose(
                    f"{len(message['present'])} of {num_expected} processes came within {message['secs']:.0f} s. "
                    f"Missing: {absent}. Present: {present}"
                )
            return
        if "hold" in message:
            with self._changed:
                self._is_held, begun = True, self._begun
            self._send({"begun": begun})
            return
        if "lost" in message and message["by"] != self.index:
            self._lose(message["lost"])
            return
        with self._changed:
            if "start" in message:
                self.members = message["start"]
            elif "all" in message:
                self._gathered[message["all"]] = message["values"]
            elif "tick" in message and self.index:
                self._ticks.append(message["tick"])
            elif "stop_after" in message:
                self._is_held, self._limit = False, message["stop_after"]
                self.stop = Stop(message["stop"], message["is_resumable"])
            elif "refused" in message:
                self._refused = message["refused"]
            self._changed.notify_all()

    def _lose(self, reason: str, grace_secs: float = _GRACE_SECS) -> None:
        with self._changed:
            if self._lost is not None or self._has_left:
                return
            self._lost = reason
            self._changed.notify_all()
        timer = threading.Timer(grace_secs, self._end, [reason])
        timer.daemon = True
        timer.start()

    def _end(self, reason: str) -> None:
        if not self._has_left:
            self.on_loss(reason)


_PURPOSES = {"start": "come"}


def _as_told(code: int, text: str) -> JaxtrainError:
    """The error of process 0, in another process."""
    error = JaxtrainError(text)
    error.exit_code = code
    return error
