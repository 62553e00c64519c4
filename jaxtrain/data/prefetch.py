"""A thread that loads batches and places them on the devices while the step before is running."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxtrain.data.pipeline import LoadedBatch, Loader

_POLL_SECS = 0.1  # how soon a request to stop is noticed while waiting for data
# Two batches, or more of small ones: up to 32 of together 2 MiB.
_MIN_DEPTH, _MAX_DEPTH = 2, 32
_AHEAD_BYTES = 2**21


class DevicePrefetch:
    """Takes batches from `loader`, hands their arrays to `place`, and keeps up to `depth` placed batches ready.

    depth: 0 takes 2, or more of small ones. Half of them are made in one go, as waking this thread takes its time.
    wait_secs: how long the consumer has waited for batches in all.
    """

    def __init__(self, loader: Loader, place: Callable[[dict[str, Any]], Any], depth: int = 0):
        self.wait_secs = 0.0
        self._loader = loader
        self._place = place
        self._depth = depth
        self._taken = 0  # since room was last made
        self._room = threading.Semaphore(depth or 1)  # the first batch decides
        self._ready: queue.SimpleQueue[tuple[Any, LoadedBatch] | BaseException] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-prefetch", daemon=True)
        self._thread.start()

    def next(self, should_stop: Callable[[], bool] = lambda: False) -> tuple[Any, LoadedBatch] | None:
        """Return (placed arrays, the batch as loaded), or None once `should_stop()` is true.

        Raises StopIteration after the last batch, and whatever the loader or `place` raised, here and again.
        """
        started = time.perf_counter()
        try:
            item = self._wait(should_stop)
        finally:
            self.wait_secs += time.perf_counter() - started
        if isinstance(item, BaseException):
            self._ready.put(item)
            # A signal to the whole job may have ended a worker before it was seen here: stopping is the better story.
            if should_stop():
                return None
            raise item
        if item is not None:
            self._taken += 1
            if self._taken >= self._depth // 2:
                self._room.release(self._taken)
                self._taken = 0
        return item

    def _wait(self, should_stop: Callable[[], bool]) -> tuple[Any, LoadedBatch] | BaseException | None:
        while not should_stop():
            try:
                return self._ready.get(timeout=_POLL_SECS)
            except queue.Empty:
                continue
        return None

    def _run(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self._closed.is_set():
                    return
                batch = next(self._loader)
                if not self._depth:
                    num_bytes = max(1, sum(array.nbytes for array in batch.arrays.values()))
                    self._depth = max(_MIN_DEPTH, min(_MAX_DEPTH, _AHEAD_BYTES // num_bytes))
                    self._room.release(self._depth - 1)
                self._ready.put((self._place(batch.arrays), batch))
        except BaseException as error:  # noqa: BLE001 carried to the consumer, StopIteration too
            self._ready.put(error)

    def close(self) -> None:
        """End the thread and the loader. Returns within seconds, also when the source hangs."""
        self._closed.set()
        self._room.release()
        self._thread.join(1.0)
        self._loader.close()
