"""Keeps a writer away from the training: what it does in its own thread, however slow or wrong, changes nothing."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxtrain.writers.writer import Writer

_logger = logging.getLogger(__name__)
_MAX_WAITING = 1000  # calls; further ones are dropped
_CLOSE_SECS = 10.0


class Background:
    """Calls the writer that `make` makes, in order and in a thread.

    A call returns at once. If `max_waiting` calls are waiting already, it is dropped; if the writer cannot be made or
    raises, the training does not hear of it. Each is told in one warning when it first happens, and counted in one at
    the end.
    """

    def __init__(self, name: str, make: Callable[[], Writer], max_waiting: int = _MAX_WAITING):
        self._name = name
        self._make = make
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(max_waiting)
        self._closing = threading.Event()
        self._num_dropped = self._num_failed = 0
        self._thread = threading.Thread(target=self._run, name=f"writer-{name}", daemon=True)
        self._thread.start()

    def write_scalars(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> None:
        self._put("write_scalars", step, split, dict(scalars), time)

    def write_text(self, step: int, name: str, text: str) -> None:
        self._put("write_text", step, name, text)

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        self._put("write_image", step, name, np.array(image))

    def close(self, timeout_secs: float = _CLOSE_SECS) -> None:
        """Wait until everything is written and the writer is closed, but no longer than `timeout_secs`."""
        self._closing.set()
        self._thread.join(timeout_secs)
        if self._thread.is_alive():
            self._num_dropped += self._calls.qsize()
            _logger.warning("%s did not finish within %g s and is left behind", self._name, timeout_secs)
        if self._num_dropped:
            _logger.warning("%s was too slow: %d points are not in it", self._name, self._num_dropped)
        if self._num_failed:
            _logger.warning("%s failed %d times; those points are not in it", self._name, self._num_failed)

    def _put(self, method: str, *arguments: Any) -> None:
        try:
            self._calls.put_nowait((method, arguments))
        except queue.Full:
            if not self._num_dropped:
                _logger.warning("%s is slower than the training: points for it are dropped from here on", self._name)
            self._num_dropped += 1

    def _run(self) -> None:
        writer = None
        try:
            writer = self._make()
        except Exception as error:  # noqa: BLE001 a tracker that is missing or down must not end the run
            self._tell(error, "cannot be opened")
        while True:
            try:
                method, arguments = self._calls.get(timeout=0.05 if self._closing.is_set() else 0.5)
            except queue.Empty:
                if self._closing.is_set():
                    break
                continue
            try:
                if writer is None:
                    self._num_failed += 1
                else:
                    getattr(writer, method)(*arguments)
            except Exception as error:  # noqa: BLE001 the same
                self._tell(error, "failed")
        try:
            if writer is not None:
                writer.close()
        except Exception as error:  # noqa: BLE001 the same
            self._tell(error, "could not be closed")

    def _tell(self, error: Exception, what: str) -> None:
        if not self._num_failed:
            _logger.warning("%s %s, the run goes on: %s: %s", self._name, what, type(error).__name__, error)
        self._num_failed += 1


def close_all(writers: list[Any], timeout_secs: float = _CLOSE_SECS) -> None:
    """Close writers, waiting no longer than `timeout_secs` for all that work in the background together."""
    deadline = time.monotonic() + timeout_secs
    for writer in writers:
        if isinstance(writer, Background):
            writer.close(max(0.0, deadline - time.monotonic()))
        else:
            writer.close()
