"""A save that fails is told once, as our StorageError: here the accounts of it that libraries give are silenced."""

import logging
import pathlib
import sys
from types import TracebackType
from typing import Any


def silence_second_accounts() -> None:
    """Drop Orbax's log records of errors, and the tracebacks of writes that outlived a failed save.

    Calling it again changes nothing.
    """
    logging.getLogger("absl").addFilter(is_not_orbax_error)
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)
    if not isinstance(sys.unraisablehook, _UnraisableHook):
        sys.unraisablehook = _UnraisableHook(sys.unraisablehook)


def is_not_orbax_error(record: logging.LogRecord) -> bool:
    """Orbax logs each failure, with tracebacks of many threads, that it also raises; we raise it once, in one line."""
    return record.levelno < logging.ERROR or "orbax" not in pathlib.Path(record.pathname).parts


class _Hook:
    """An excepthook. TensorStore prints through it what fails in its own threads, where nobody can catch it.

    The first write that fails ends Orbax's event loop, and each other write of that save then fails to report to it.
    """

    def __init__(self, previous: Any):
        self._previous = previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not _outlived_its_save(error):
            self._previous(kind, error, trace)


class _UnraisableHook:
    """The same for `sys.unraisablehook`, which gets what such a thread meets where it has no way to raise at all."""

    def __init__(self, previous: Any):
        self._previous = previous

    def __call__(self, unraisable: Any) -> None:
        if not _outlived_its_save(unraisable.exc_value):
            self._previous(unraisable)


def _outlived_its_save(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
