"""`status.json`: what a run is doing, for whoever looks at it from outside."""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from jaxtrain import files

_logger = logging.getLogger(__name__)

STATES = ("starting", "running", "finished", "failed", "preempted", "nonfinite", "stalled")


class Status:
    """Writes its files, whole, at every change of state and every heartbeat.

    Keys: state, step, reason, run_id, host, pid; started and heartbeat in seconds since the epoch; beats, a counter by
    which a reader sees life whatever the clocks say; elapsed_secs, by the monotonic clock.
    """

    def __init__(self, paths: Sequence[Path], run_id: str):
        self.step = 0
        self._paths = paths
        self._identity = {"run_id": run_id, "host": socket.gethostname(), "pid": os.getpid()}
        self._started = time.time()
        self._start = time.monotonic()
        self._state = ""
        self._reason = ""
        self._beats = 0
        self._has_warned = False
        self._lock = threading.Lock()

    def write(self, state: str, step: int, reason: str = "") -> None:
        assert state in STATES, state
        self.step, self._state, self._reason = step, state, reason
        self._put()

    def beat(self) -> None:
        """Write again with a new heartbeat, if there is a state to tell."""
        if self._state:
            self._put()

    def _put(self) -> None:
        with self._lock:
            self._beats += 1
            document = {
                "state": self._state,
                "step": self.step,
                "reason": self._reason,
                **self._identity,
                "started": self._started,
                "heartbeat": time.time(),
                "beats": self._beats,
                "elapsed_secs": round(time.monotonic() - self._start, 3),
            }
            for path in self._paths:
                try:
                    path.parent.mkdir(mode=0o700, exist_ok=True)
                    files.replace_json(path, document)
                except OSError as error:
                    if not self._has_warned:
                        self._has_warned = True
                        _logger.warning("%s cannot be written: %s", path, error.strerror)
