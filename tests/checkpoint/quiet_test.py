import logging
import sys
import types

import pytest

from jaxtrain.checkpoint import quiet


@pytest.fixture
def hooked(monkeypatch):
    """What the excepthook below ours was given."""
    told = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: told.append(error))
    quiet.silence_second_accounts()
    return told


def test_only_the_writes_that_lost_their_event_loop_are_silent(hooked):
    other = [RuntimeError("something else"), ValueError("Event loop is closed")]
    for error in (RuntimeError("Event loop is closed"), *other):
        sys.excepthook(type(error), error, None)
    assert hooked == other


def test_a_thread_that_cannot_even_raise_is_silent_about_the_same_and_nothing_else(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    quiet.silence_second_accounts()
    other = [RuntimeError("something else"), None]
    for error in (RuntimeError("Event loop is closed"), *other):
        sys.unraisablehook(types.SimpleNamespace(exc_value=error))
    assert told == other


def test_silencing_twice_is_silencing_once(hooked):
    first = sys.excepthook
    quiet.silence_second_accounts()
    assert sys.excepthook is first


@pytest.mark.parametrize(
    ("path", "level", "is_kept"),
    [
        ("/x/orbax/checkpoint/a.py", logging.ERROR, False),
        ("/x/orbax/checkpoint/a.py", logging.WARNING, True),
        ("/x/jaxtrain/a.py", logging.ERROR, True),
    ],
)
def test_errors_that_orbax_logs_are_dropped(path, level, is_kept):
    record = logging.LogRecord("absl", level, path, 1, "text", None, None)
    assert quiet.is_not_orbax_error(record) == is_kept
