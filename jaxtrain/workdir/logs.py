"""The log of a process: every line, without secrets, on the terminal and in `logs/process-<i>.log`."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence

from jaxtrain import files
from jaxtrain.errors import WorkdirError
from jaxtrain.redact import redact
from jaxtrain.workdir.layout import Workdir

# Libraries whose INFO lines are about themselves; their warnings are shown.
_CHATTY = ("absl", "jax", "orbax", "grain", "flax", "tensorboardX", "asyncio", "matplotlib")


@contextlib.contextmanager
def on_terminal(process_index: int) -> Iterator[None]:
    """Show lines on the terminal before there is a workdir. Processes other than 0 show warnings only."""
    undo = _take_over([_terminal(process_index)])
    try:
        yield
    finally:
        undo()


def _terminal(process_index: int) -> logging.Handler:
    terminal = _TerminalHandler()
    terminal.setFormatter(_TerseFormatter())
    terminal.setLevel(logging.INFO if process_index == 0 else logging.WARNING)
    terminal.addFilter(_is_wanted)
    terminal.addFilter(lambda record: not getattr(record, "file_only", False))
    return terminal


def setup_logging(workdir: Workdir, process_index: int = 0) -> Callable[[], None]:
    """Send every logger's lines and Python's warnings to standard output and to the process's log file.

    Processes other than 0 print warnings only. Plain handlers of the root logger, as `logging.basicConfig` leaves them
    (importing grain calls it), would print every line once more and are put away meanwhile. A record with `file_only`
    is for the file. Returns the function that undoes it all. Raises WorkdirError if the file cannot be opened.
    """
    path = workdir.logs_dir / f"process-{process_index}.log"
    try:
        file = files.AppendFile(path)
    except OSError as error:
        raise WorkdirError(f"{path} cannot be opened: {error.strerror}.") from error
    terminal, log_file = _terminal(process_index), _FileHandler(file)
    log_file.addFilter(_is_wanted)
    log_file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.captureWarnings(True)
    undo = _take_over([terminal, log_file])

    def undo_all() -> None:
        logging.captureWarnings(False)
        undo()

    return undo_all


def _take_over(handlers: Sequence[logging.Handler]) -> Callable[[], None]:
    """Let these alone handle what is logged, from INFO up. Returns the function that gives it back."""
    root = logging.getLogger()
    old_level, before = root.level, list(root.handlers)
    plain = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]
    for other in plain:
        root.removeHandler(other)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.INFO)

    def undo() -> None:
        root.setLevel(old_level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        kept = [other for other in before if other in root.handlers or other in plain]
        root.handlers[:] = [*kept, *(other for other in root.handlers if other not in kept)]

    return undo


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.split(".")[0] not in _CHATTY


class _Formatter(logging.Formatter):
    """Redacts the finished line, so that arguments, tracebacks and stacks are covered, too."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class _TerseFormatter(_Formatter):
    """Names the level only where it is a warning or worse, and keeps the columns of a table below each other."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        time = self.formatTime(record, "%H:%M:%S")
        return f"{time} {level}{record.message}".replace("\n", "\n" + " " * (len(time) + 1))


class _TerminalHandler(logging.Handler):
    """Writes to whatever `sys.stdout` is now: a progress bar and a notebook replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        # A reader that went away or a full disk behind a redirection is no reason to stop; the log file has the line.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


class _FileHandler(logging.Handler):
    def __init__(self, file: files.AppendFile):
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        self._file.write((self.format(record) + "\n").encode(errors="backslashreplace"))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()
