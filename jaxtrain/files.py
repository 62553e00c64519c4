"""Files that a kill, a full disk or somebody's `rm` cannot make inconsistent: replaced whole, or only appended to."""

import collections
import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtrain.redact import redact

_logger = logging.getLogger(__name__)


def replace_bytes(path: Path, data: bytes) -> None:
    """Give `path` the content `data`: whoever reads it, also after a kill, sees the old bytes or the new ones.

    Raises OSError; the old content is then intact.
    """
    # One writer per file (the workdir is locked), so a fixed name: what a kill leaves behind is overwritten next time.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def replace_json(path: Path, document: Any) -> None:
    """`replace_bytes` with `document` as indented JSON, every string of it redacted."""
    replace_bytes(path, (json.dumps(redacted(document), indent=2) + "\n").encode())


def redacted(document: Any) -> Any:
    """Copy JSON-able `document` with secrets removed from every string.

    Before encoding, because a secret with quotes or umlauts looks different inside JSON text.
    """
    if isinstance(document, str):
        return redact(document)
    if isinstance(document, Mapping):
        return {redact(str(key)): redacted(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [redacted(value) for value in document]
    return document


def sync_directory(path: Path) -> None:
    """Make a rename inside `path` survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Nowhere:
    """In place of an `AppendFile`: takes everything and keeps nothing."""

    num_pending = 0

    def write(self, record: bytes) -> None:
        """Drop it."""

    def flush(self) -> None:
        """Nothing is there."""

    def reopen(self) -> None:
        """Nothing was open."""

    def close(self) -> None:
        """Nothing is open."""


class AppendFile:
    """A file that only grows, for lines and records the run can do without for a while.

    What cannot be written (disk full, quota) stays in memory, in order, and goes out with the first write that works;
    the first failure is one warning. A file deleted under the run is made again, with one warning. Only opening it
    the first time raises OSError. Safe to call from several threads.
    """

    def __init__(self, path: Path, header: bytes = b""):
        """`header` starts the file, also one that had to be made again."""
        self.path = path
        self._header = header
        self._lock = threading.RLock()  # a warning about this file may be logged to this file
        self._pending: collections.deque[bytes] = collections.deque()
        self._offset = 0  # bytes of the first pending record that are in the file already
        self._warned: set[str] = set()
        self._closed = False
        self._descriptor: int | None = None
        self._open()

    @property
    def num_pending(self) -> int:
        """Records that are not, or not wholly, in the file yet."""
        return len(self._pending)

    def write(self, record: bytes) -> None:
        with self._lock:
            self._pending.append(record)
            self._drain()

    def flush(self) -> None:
        """Try again what is pending, then make what was written survive a power cut."""
        with self._lock:
            self._drain()
            try:
                if self._descriptor is not None:
                    os.fsync(self._descriptor)
            except OSError as error:
                self._warn("full", f"{self.path} may not be complete on disk: {error.strerror}")

    def close(self) -> None:
        """Write what is pending if that is possible now, and close. Records lost are a warning."""
        with self._lock:
            if self._closed:
                return
            self.flush()
            self._closed = True
            if self._pending:
                _logger.warning("%s: %d records could not be written and are lost", self.path, len(self._pending))
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def reopen(self) -> None:
        """Open the file again after it was replaced on purpose."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self._open()

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._offset = 0
        if self._header and os.fstat(self._descriptor).st_size == 0 and self._header not in self._pending:
            self._pending.appendleft(self._header)

    def _drain(self) -> None:
        if self._closed:
            return
        try:
            if self._is_gone():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path.parent, 0o700)  # one level only: a workdir that is gone as a whole stays gone
                self.reopen()
                self._warn("gone", f"{self.path} was deleted during the run; it is made again from here on")
            while self._pending and self._descriptor is not None:
                # A nearly full disk takes a part of a record; the rest follows later, in one piece with it.
                record = self._pending[0]
                self._offset += os.write(self._descriptor, record[self._offset :])
                if self._offset == len(record):
                    self._pending.popleft()
                    self._offset = 0
        except OSError as error:
            self._warn("full", f"{self.path} cannot be written ({error.strerror}); kept in memory until it can")

    def _is_gone(self) -> bool:
        if self._descriptor is None:
            return True
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return True

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _logger.warning("%s", message)
