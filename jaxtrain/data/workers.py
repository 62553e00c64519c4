"""What worker processes need around Grain: flags, signals, and an end when their parent ends."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from multiprocessing import resource_tracker

from absl import flags

# How long a worker goes on after SIGTERM. Schedulers send it to every process of a job; the run still needs batches
# until all processes have agreed on the step to stop at.
_SIGTERM_GRACE_SECS = 60


def prepare_parent() -> None:
    """Make this process ready to start Grain's workers. Call it before the first one starts."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # a notebook or a library user parses none, and Grain reads its own
    # multiprocessing's tracker process unblocks SIGTERM in the thread that starts it, which would end the run on the
    # next SIGTERM instead of leaving it to the thread that waits for it. So it is started here, and the mask put back.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def start_worker(worker_index: int, num_workers: int) -> None:
    """Set a worker process up, before it reads its first example. Grain calls it with both arguments."""
    del worker_index, num_workers
    _watch_parent()
    _take_signals()
    import jax  # Grain has imported it; a transform that uses it must not take the accelerator from the run

    jax.config.update("jax_platforms", "cpu")


def _take_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # so does a scheduler's notice
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # and the wish for a trace, which is no reason to end
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_SIGTERM_GRACE_SECS))
    # The parent's mask is inherited.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM))


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "start_worker runs in a worker"

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, name="watch-parent", daemon=True).start()
