"""A thread that loads batches and places them on the devices while the step before is running."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxtrain.data.pipeline import LoadedBatch, Loader

_POLL_SECS = 0.1  # how soon a request to stop is noticed while waiting for data


class DevicePrefetch:
    """Takes batches from `loader`, hands their arrays to `place`, and keeps `depth` placed batches ready.

    wait_secs: how long the consumer has waited for batches in all.
    """

    def __init__(self, loader: Loader, place: Callable[[dict[str, Any]], Any], depth: int = 2):
        self.wait_secs = 0.0
        self._loader = loader
        self._place = place
        self._room = threading.Semaphore(max(1, depth))
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
            self._room.release()
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
                self._ready.put((self._place(batch.arrays), batch))
        except BaseException as error:  # noqa: BLE001 carried to the consumer, StopIteration too
            self._ready.put(error)

    def close(self) -> None:
        """End the thread and the loader. Returns within seconds, also when the source hangs."""
        self._closed.set()
        self._room.release()
        self._thread.join(1.0)
        self._loader.close()
