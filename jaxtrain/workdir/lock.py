"""The lock that keeps two runs off one workdir.

`flock` decides between processes of one machine: the kernel drops it with its holder, however that died, and a copy of
the file is another file. Where it cannot know (a holder on another machine, whose lock a network file system may not
show), the heartbeat in the file decides: whoever wants the lock watches whether it moves. No clock is compared.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtrain.errors import WorkdirError

_logger = logging.getLogger(__name__)

WATCH_SECS = 20.0  # four heartbeats
_ORPHAN_SECS = 3.0  # how long forked children of a dead holder may take to die
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def boot_id() -> str:
    """Tell one start of one machine from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()


def read_run_id(path: Path) -> str:
    """Say which run holds the lock, "" if none does."""
    try:
        holder = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ""
    return str(holder.get("run_id", "")) if isinstance(holder, dict) else ""


class Lock:
    """Holds `path` for one run. The file stays when it is released, empty."""

    def __init__(
        self,
        path: Path,
        run_id: str,
        *,
        boot: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """`boot` replaces this machine's `boot_id()`; `clock` and `sleep` are those of waiting."""
        self.path = path
        self._boot = boot or boot_id()
        self._clock = clock
        self._sleep = sleep
        self._descriptor = -1
        self._holder: dict[str, Any] = {
            "run_id": run_id,
            "host": socket.gethostname(),
            "boot_id": self._boot,
            "pid": os.getpid(),
        }

    def acquire(self) -> str:
        """Take the lock. Returns a sentence if a run that ended without releasing it was holding it, else "".

        Raises WorkdirError naming the run that holds it.
        """
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _held.add(self)
            is_locked = self._flock()
            before = self._read()
            notice = ""
            if before is not None:
                if self._is_alive(before, is_locked):
                    raise WorkdirError(_in_use(self.path.parent, before))
                if not self._is_copy(before):
                    notice = (
                        f"Took over the workdir from run {before.get('run_id')} (pid {before.get('pid')} on "
                        f"{before.get('host')}), which ended without releasing it."
                    )
            self._holder |= {"inode": os.fstat(self._descriptor).st_ino, "started": time.time(), "beats": 0}
            self._write()
            return notice
        except OSError as error:
            self._close()
            raise WorkdirError(f"{self.path} cannot be used as the lock: {error.strerror}.") from error
        except WorkdirError:
            self._close()
            raise

    def beat(self) -> None:
        """Show that the holder lives. A file system that does not take it is left alone: `flock` still holds."""
        self._holder["beats"] += 1
        with contextlib.suppress(OSError):
            self._write()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        self._close()

    def _flock(self) -> bool:
        """Try for the kernel's lock. False where the file system has none. Raises WorkdirError if another holds it."""
        deadline = self._clock() + _ORPHAN_SECS
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    return False
                if not isinstance(error, BlockingIOError):
                    raise
            holder = self._read() or {}
            # Only just taken, it has not been written yet; forked children of a dead holder keep it until they die.
            if (holder and _pid_exists(holder, self._boot)) or self._clock() > deadline:
                raise WorkdirError(_in_use(self.path.parent, holder))
            self._sleep(0.05)

    def _is_alive(self, holder: dict[str, Any], is_locked: bool) -> bool:
        if holder.get("boot_id") == self._boot:
            return not (is_locked or self._is_copy(holder)) and _pid_exists(holder, self._boot)
        # Another machine, or this one before it was restarted.
        _logger.warning(
            "%s was last used by run %s on %s; watching up to %d s whether it still lives",
            self.path.parent,
            holder.get("run_id"),
            holder.get("host"),
            WATCH_SECS,
        )
        deadline = self._clock() + WATCH_SECS
        while self._clock() < deadline:
            self._sleep(0.5)
            if self._read() != holder:
                return True
        return False

    def _is_copy(self, holder: dict[str, Any]) -> bool:
        """Was this file copied from the workdir of the run it names?"""
        return holder.get("inode") != os.fstat(self._descriptor).st_ino

    def _read(self) -> dict[str, Any] | None:
        """What the holder wrote; None when it was released, or killed before it had written."""
        try:
            holder = json.loads(os.pread(self._descriptor, 4096, 0))
        except ValueError:
            return None
        return holder if isinstance(holder, dict) else None

    def _write(self) -> None:
        text = json.dumps({**self._holder, "heartbeat": time.time()}).encode()
        os.pwrite(self._descriptor, text.ljust(512), 0)  # in place and never shorter: no reader finds half of it

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _pid_exists(holder: dict[str, Any], boot: str) -> bool:
    """Is the holder a process of this machine that runs? Also True when that cannot be known."""
    if holder.get("boot_id") != boot:
        return True
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, KeyError, ValueError):
        return True
    return True


def _in_use(workdir: Path, holder: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("started", 0.0)))
    who = (
        f"run {holder['run_id']} (pid {holder['pid']} on {holder['host']}, since {since})" if holder else "another run"
    )
    return f"The workdir {workdir} is in use by {who}. Stop it, or give another --workdir=."


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock and would keep it after its parent's death.
    for lock in _held:
        lock._close()


os.register_at_fork(after_in_child=_forget_in_child)
