"""A save that fails is told once, as our StorageError: here the accounts of it that libraries give are silenced."""

import logging
import pathlib
import sys
from collections.abc import Callable
from typing import Any


def silence_second_accounts() -> None:
    """Drop Orbax's log records of errors, and the tracebacks of writes that outlived a failed save.

    Calling it again changes nothing.
    """
    logging.getLogger("absl").addFilter(is_not_orbax_error)
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook, lambda kind, error, trace: error)
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook, lambda unraisable: unraisable.exc_value)


def is_not_orbax_error(record: logging.LogRecord) -> bool:
    """Orbax logs each failure, with tracebacks of many threads, that it also raises; we raise it once, in one line."""
    return record.levelno < logging.ERROR or "orbax" not in pathlib.Path(record.pathname).parts


class _Hook:
    """A hook of `sys` that drops what a write met that outlived its save, and calls `previous` for all else.

    TensorStore prints through these what fails in its own threads, where nobody can catch it. The first write that
    fails ends Orbax's event loop, and each other write of that save then fails to report to it.
    error_of: gives the error among the hook's arguments.
    """

    def __init__(self, previous: Callable[..., Any], error_of: Callable[..., BaseException | None]):
        self._previous = previous
        self._error_of = error_of

    def __call__(self, *arguments: Any) -> None:
        error = self._error_of(*arguments)
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            self._previous(*arguments)
