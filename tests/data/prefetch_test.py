import threading

import numpy as np
import pytest

from jaxtrain.data.pipeline import LoadedBatch
from jaxtrain.data.prefetch import DevicePrefetch
from jaxtrain.errors import StoppedError


class Batches:
    """A loader of `count` batches; waits for `gate` before each, fails with `error` after the last."""

    def __init__(self, count, error=None, gate=None):
        self.count, self.error, self.gate = count, error, gate
        self.loaded = 0
        self.closed = threading.Event()
        self.progress = threading.Semaphore(0)

    def __iter__(self):
        return self

    def __next__(self):
        if self.gate is not None:
            self.gate.acquire()
        if self.loaded == self.count:
            raise self.error or StopIteration
        self.loaded += 1
        self.progress.release()
        return LoadedBatch({"x": np.full(2, self.loaded)}, num_bad=self.loaded)

    def close(self):
        self.closed.set()


def double(arrays):
    return {key: value * 2 for key, value in arrays.items()}


def test_batches_come_placed_in_order_and_end():
    prefetch = DevicePrefetch(Batches(3), double)
    found = [prefetch.next() for _ in range(3)]
    assert [placed["x"][0] for placed, _ in found] == [2, 4, 6]
    assert [batch.num_bad for _, batch in found] == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(StopIteration):
            prefetch.next()
    prefetch.close()


@pytest.mark.parametrize("depth", [1, 3])
def test_never_more_than_depth_batches_are_ahead(depth):
    loader = Batches(100)
    prefetch = DevicePrefetch(loader, double, depth)
    for _ in range(depth):
        assert loader.progress.acquire(timeout=10)
    assert not loader.progress.acquire(timeout=0.1)
    prefetch.next()
    assert loader.progress.acquire(timeout=10)
    assert not loader.progress.acquire(timeout=0.1)
    prefetch.close()


def test_an_error_of_the_loader_reaches_the_consumer_after_the_batches_before_it():
    prefetch = DevicePrefetch(Batches(2, error=ValueError("broken")), double)
    prefetch.next()
    prefetch.next()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            prefetch.next()
    prefetch.close()


def test_an_error_in_placing_reaches_the_consumer():
    def place(arrays):
        raise MemoryError("no room")

    prefetch = DevicePrefetch(Batches(2), place)
    with pytest.raises(MemoryError, match="no room"):
        prefetch.next()
    prefetch.close()


def test_a_request_to_stop_ends_the_wait_for_data_and_counts_as_waiting():
    gate = threading.Semaphore(0)
    prefetch = DevicePrefetch(Batches(1, gate=gate), double)
    asked = []
    assert prefetch.next(lambda: len(asked) >= 2 or asked.append(1)) is None
    assert prefetch.wait_secs > 0
    gate.release()
    placed, _ = prefetch.next()
    assert placed["x"][0] == 2
    gate.release()
    prefetch.close()


def test_stopping_goes_before_a_worker_that_the_same_signal_ended():
    loader = Batches(0, error=StoppedError("worker killed"))
    prefetch = DevicePrefetch(loader, double)
    answers = iter([False, True, False, False])
    assert prefetch.next(lambda: next(answers)) is None
    with pytest.raises(StoppedError):
        prefetch.next(lambda: next(answers))
    prefetch.close()


def test_close_ends_the_thread_and_the_loader_also_when_the_loader_hangs():
    for gate in (None, threading.Semaphore(0)):
        loader = Batches(10, gate=gate)
        prefetch = DevicePrefetch(loader, double, depth=1)
        prefetch.close()
        assert loader.closed.is_set()
        if gate is None:
            assert not prefetch._thread.is_alive()
        else:
            gate.release()
            prefetch._thread.join(10)
            assert not prefetch._thread.is_alive()
