"""SIGTERM, SIGUSR1 and Ctrl-C: the run stops where it can be resumed, and a second signal ends it at once.

SIGUSR2 only asks for a trace of some steps (profiling.py), at any time and as often as one likes.

A Python signal handler runs in the main thread, between two bytecodes: in a call that takes minutes, such as a
compilation, not at all or only to set a flag that nobody looks at. So the program blocks the signals (`install`) and a
thread of its own waits for them with `sigwait`; threads started later inherit the blocked mask. Only a call that holds
the GIL delays that thread.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from jaxtrain.errors import EXIT_RESUMABLE

_logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
PROFILE = signal.SIGUSR2

# `timeout`, job launchers and process groups deliver one signal twice within microseconds: that is still the first.
_BOUNCE_SECS = 0.02
_CALLBACK_SECS = 1.5  # a status on a file system that hangs must not keep the process


class Signals:
    """Tells the loop when to stop. Not installed, or installed outside the main thread, it never asks for anything.

    requested: the reason to stop ("SIGTERM", "SIGUSR1", "Ctrl-C"), None as long as there is none.
    num_profile_requests: SIGUSR2 that have come.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.num_profile_requests = 0
        self._callback: Callable[[str], None] = lambda reason: None
        self._grace_secs = 0.0
        self._is_ready = False
        self._over = threading.Event()
        self._timer: threading.Timer | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_mask: set[int | signal.Signals] | None = None
        self._thread: threading.Thread | None = None

    def install(self, *, own_process: bool = True) -> bool:
        """Start to listen; False, and nothing happens, outside the main thread.

        `own_process` is for the program itself, before it imports what starts threads (NumPy, JAX): signals are seen at
        any moment and may end the process. Without it (a notebook, a script that calls `train`) there are only
        handlers: the loop sees the flag, a second Ctrl-C raises KeyboardInterrupt, a second SIGTERM does what it
        did before.
        """
        global _installed
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return False
        # Started in the background of a shell, a process ignores Ctrl-C, which is for others then. A program's own
        # handler of the others is left to it.
        numbers = [n for n in (*SIGNALS, PROFILE) if n != signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN]
        if own_process:
            self._over.clear()
            self._previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
            self._thread = threading.Thread(target=self._listen, args=(set(numbers),), name="signals", daemon=True)
            self._thread.start()
            _installed = self
        else:
            numbers = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) == signal.SIG_DFL]
        self._previous = {n: signal.signal(n, self._forward if own_process else self._interrupt) for n in numbers}
        return True

    def before_first_step(self, callback: Callable[[str], None], grace_secs: float) -> None:
        """Say what to do before this process ends itself with code 75.

        That happens on a signal before `ready()`, when there is nothing to save yet, and `grace_secs` after a signal
        that the loop has not answered. `callback(reason)` runs in another thread and gets 1.5 seconds.
        """
        self._callback = callback
        self._grace_secs = grace_secs
        self._is_ready = False

    def ready(self) -> None:
        """From now on the loop looks at `requested` and there is something to save."""
        self._is_ready = True

    def uninstall(self) -> None:
        """Give back masks and handlers. Does nothing when not installed."""
        global _installed
        if self._thread is not None:
            self._over.set()
            signal.pthread_kill(self._thread.ident or 0, signal.SIGUSR1)
            self._thread.join()
            if self._timer is not None:
                self._timer.cancel()
            self._thread = None
            _installed = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._previous_mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._previous_mask)
        self._previous, self._previous_mask = {}, None

    def _forward(self, number: int, frame: FrameType | None) -> None:
        # Only when a thread from before `install` was hit: one place decides.
        if self._thread is not None:
            signal.pthread_kill(self._thread.ident or 0, number)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if number == PROFILE:
            self.num_profile_requests += 1
        elif self.requested is None:
            self.requested = _name(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _listen(self, numbers: set[signal.Signals]) -> None:
        while True:
            number = signal.sigwait(numbers)
            if self._over.is_set():
                return
            if number == PROFILE:
                self.num_profile_requests += 1
                continue
            if self.requested is not None:
                os._exit(128 + number)
            self.requested = _name(number)
            time.sleep(_BOUNCE_SECS)
            while bounced := signal.sigpending() & numbers:
                signal.sigwait(bounced)
            if self._over.is_set():  # `uninstall` woke a thread that was busy
                return
            self._answer(self.requested)

    def _answer(self, name: str) -> None:
        if not self._is_ready:
            self.end_process(f"{name} before the first step")
            return
        late = f"{name}, and the run did not stop within preemption.grace_secs={self._grace_secs:g}"
        self._timer = threading.Timer(self._grace_secs, self.end_process, [late])
        self._timer.daemon = True
        self._timer.start()
        _within(
            _CALLBACK_SECS, _logger.warning, f"{name}: stopping after this step. A second signal ends the run at once."
        )

    def end_process(self, reason: str) -> None:
        """End this process with code 75, from any thread, once the callback of `before_first_step` was called."""
        if self._over.is_set():
            return
        _within(_CALLBACK_SECS, self._save, reason)
        os._exit(EXIT_RESUMABLE)  # the main thread may be in a call that Python cannot end

    def _save(self, reason: str) -> None:
        _logger.warning("Stopped: %s. The same command resumes the run.", reason)
        self._callback(reason)


@contextlib.contextmanager
def unblocked() -> Iterator[None]:
    """Start child processes inside: they then do not inherit the blocked signals. Forked ones never do."""
    previous = signal.pthread_sigmask(signal.SIG_UNBLOCK, (*SIGNALS, PROFILE))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


_installed: Signals | None = None  # the one of this process, for children that are forked


def _restore_in_child() -> None:
    if _installed is not None and _installed._previous_mask is not None:
        for number, handler in _installed._previous.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, _installed._previous_mask)


os.register_at_fork(after_in_child=_restore_in_child)


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _within(limit_secs: float, function: Callable[..., None], *args: Any) -> None:
    """Call `function`, but wait for its end only so long."""
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    thread.join(limit_secs)
