"""The frame around a run: its workdir is locked, its log is open, signals are seen, its end is written down."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxtrain.config import Config, to_dict
from jaxtrain.errors import EXIT_ERROR, NonFiniteError, StoppedError
from jaxtrain.preemption import Signals
from jaxtrain.workdir import Workdir, setup_logging

_logger = logging.getLogger(__name__)


class Session:
    """workdir, signals: those of this run.   has_begun: from then on, the end of the run is written to its status."""

    def __init__(self, workdir: Workdir, signals: Signals):
        self.workdir = workdir
        self.signals = signals
        self.has_begun = False

    def begin(self, config: Config, launch: Mapping[str, Any], step: int) -> None:
        """All that could be refused was not: from here on, this launch is the run of the workdir."""
        self.workdir.write_config(to_dict(config))
        self.workdir.append_manifest({**launch, "run_id": self.workdir.run_id, "step": step})
        self.has_begun = True
        self.workdir.write_status("starting", step)

    def end(self, state: str, reason: str = "") -> None:
        """Write down how the run ended, if it had begun."""
        if self.has_begun:
            self.workdir.write_status(state, self.workdir.step, reason)

    def abandon(self, reason: str) -> None:
        """Leave the workdir as an end should, just before the process ends itself."""
        self.end("preempted", reason)
        self.workdir.release()


@contextlib.contextmanager
def opened(config: Config, path: str | Path | None, signals: Signals | None) -> Iterator[Session]:
    """Open the workdir for one run. `signals` is the program's own; else handlers are set up for this call.

    Raises WorkdirError. Whatever is raised inside is written to the status and goes on.
    """
    workdir = Workdir(path or Path("runs") / (config.name or "unnamed"), make_parent=path is None)
    notice = workdir.lock()
    with contextlib.ExitStack() as stack:
        stack.callback(workdir.release)
        stack.callback(setup_logging(workdir, jax.process_index()))
        if notice:
            _logger.warning("%s", notice)
        if signals is None:
            signals = Signals()
            signals.install(own_process=False)
            stack.callback(signals.uninstall)
        session = Session(workdir, signals)
        signals.before_first_step(session.abandon, config.preemption.grace_secs)
        try:
            yield session
        except BaseException as error:
            session.end(_state_after(error), f"{type(error).__name__}: {error}")
            if getattr(error, "exit_code", EXIT_ERROR) == EXIT_ERROR:
                _logger.exception("the run failed")  # the process's log keeps the traceback
            raise


def _state_after(error: BaseException) -> str:
    if isinstance(error, NonFiniteError):
        return "nonfinite"
    if isinstance(error, StoppedError | KeyboardInterrupt):
        return "preempted"
    return "failed"
