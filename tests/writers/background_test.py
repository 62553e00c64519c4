import logging
import threading

import numpy as np

from jaxtrain.writers.background import Background, close_all


class Recorder:
    """Remembers its calls; waits for `gate` before each, and raises `error` instead of the first `failures`."""

    def __init__(self, gate=None, error=None, failures=10**9):
        self.calls, self.gate, self.error, self.failures = [], gate, error, failures
        self.reached = threading.Semaphore(0)

    def take(self, *call):
        self.reached.release()
        if self.gate is not None:
            self.gate.wait(20)
        if self.error is not None and self.failures > 0:
            self.failures -= 1
            raise self.error
        self.calls.append(call)

    def write_scalars(self, step, split, scalars, time):
        self.take("scalars", step, split, scalars, time)

    def write_text(self, step, name, text):
        self.take("text", step, name, text)

    def write_image(self, step, name, image):
        self.take("image", step, name, image.tolist())

    def close(self):
        self.calls.append("closed")


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_calls_arrive_in_order_with_what_they_held_when_made(caplog):
    recorder = Recorder()
    writer = Background("it", lambda: recorder)
    scalars, image = {"loss": 1.0}, np.zeros((1, 1, 1), np.uint8)
    writer.write_scalars(1, "train", scalars, 5.0)
    writer.write_image(1, "i", image)
    scalars["loss"], image[...] = 2.0, 7
    writer.write_text(2, "t", "words")
    writer.close()
    assert recorder.calls == [
        ("scalars", 1, "train", {"loss": 1.0}, 5.0),
        ("image", 1, "i", [[[0]]]),
        ("text", 2, "t", "words"),
        "closed",
    ]
    assert warnings_of(caplog) == []


def test_a_writer_that_is_too_slow_loses_points_with_one_counted_warning(caplog):
    gate = threading.Event()
    recorder = Recorder(gate)
    writer = Background("it", lambda: recorder, max_waiting=3)
    writer.write_text(0, "t", "0")
    assert recorder.reached.acquire(timeout=20)  # it is in the thread's hands, and waits for nothing in the queue
    for step in range(1, 10):
        writer.write_text(step, "t", str(step))
    gate.set()
    writer.close()
    assert [call[1] for call in recorder.calls[:-1]] == [0, 1, 2, 3]
    assert warnings_of(caplog) == [
        "it is slower than the training: points for it are dropped from here on",
        "it was too slow: 6 points are not in it",
    ]


def test_a_writer_that_raises_is_told_once_and_counted_and_goes_on_when_it_works_again(caplog):
    recorder = Recorder(error=ConnectionError("no network"), failures=2)
    writer = Background("it", lambda: recorder)
    for step in range(4):
        writer.write_text(step, "t", "x")
    writer.close()
    assert [call[1] for call in recorder.calls[:-1]] == [2, 3]
    assert warnings_of(caplog) == [
        "it failed, the run goes on: ConnectionError: no network",
        "it failed 2 times; those points are not in it",
    ]


def test_a_writer_that_cannot_be_made_changes_nothing(caplog):
    def make():
        raise ImportError("no module named it")

    writer = Background("it", make)
    writer.write_text(1, "t", "x")
    writer.close()
    assert warnings_of(caplog)[0] == "it cannot be opened, the run goes on: ImportError: no module named it"


def test_closing_waits_only_so_long_for_all_together(caplog):
    gate = threading.Event()
    stuck = [Background(name, lambda: Recorder(gate)) for name in ("one", "two")]
    for writer in stuck:
        writer.write_text(1, "t", "x")
    plain = Recorder()
    close_all([*stuck, plain], timeout_secs=0.2)
    assert plain.calls == ["closed"]
    assert [line for line in warnings_of(caplog) if "did not finish" in line] == [
        "one did not finish within 0.2 s and is left behind",
        "two did not finish within 0 s and is left behind",
    ] or len([line for line in warnings_of(caplog) if "did not finish" in line]) == 2
    gate.set()
