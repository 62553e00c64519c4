"""The frame around a run: its workdir is locked, its log is open, signals are seen, its end is written down."""

import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxtrain.config import Config, to_dict
from jaxtrain.distributed.alone import Alone
from jaxtrain.errors import EXIT_ERROR, NonFiniteError, StoppedError, WorkdirError
from jaxtrain.preemption import Signals
from jaxtrain.workdir import Workdir, setup_logging

_logger = logging.getLogger(__name__)


class Session:
    """workdir, signals, crew: those of this run.

    has_begun: from then on, the end of the run is written to its status.
    """

    def __init__(self, workdir: Workdir, signals: Signals, crew: Alone):
        self.workdir = workdir
        self.signals = signals
        self.crew = crew
        self.has_begun = False

    def begin(self, config: Config, launch: Mapping[str, Any], step: int) -> None:
        """All that could be refused was not: from here on, this launch is the run of the workdir."""
        self.workdir.write_config(to_dict(config))
        self.workdir.append_manifest({**launch, "run_id": self.workdir.run_id, "step": step})
        self.has_begun = True
        self.workdir.write_status("starting", step)
        _logger.info("%s: %s", self.workdir.path, f"goes on after step {step}" if step else "a new run")

    def end(self, state: str, reason: str = "") -> None:
        """Write down how the run ended, if it had begun."""
        if self.has_begun:
            self.workdir.write_status(state, self.workdir.step, reason)

    def abandon(self, reason: str) -> None:
        """Leave the workdir as an end should, just before the process ends itself."""
        self.end("preempted", reason)
        self.workdir.release()


@contextlib.contextmanager
def opened(
    config: Config, path: str | Path | None, signals: Signals | None, crew: Alone | None = None
) -> Iterator[Session]:
    """Open the workdir for one run. `signals` is the program's own; else handlers are set up for this call.

    crew: the processes of this run.
    Raises WorkdirError. Whatever is raised inside is written to the status and goes on.
    """
    crew = crew or Alone()
    with contextlib.ExitStack() as stack:
        workdir, notice = _open_workdir(path or Path("runs") / (config.name or "unnamed"), path is None, crew)
        stack.callback(workdir.release)
        stack.callback(setup_logging(workdir, crew.index))
        if notice:
            _logger.warning("%s", notice)
        if signals is None:
            signals = Signals()
            signals.install(own_process=False)
            stack.callback(signals.uninstall)
        crew.on_loss = signals.end_process
        session = Session(workdir, signals, crew)
        signals.before_first_step(session.abandon, config.preemption.grace_secs)
        try:
            yield session
        except BaseException as error:
            told = crew.explain(error)
            session.end(_state_after(told), f"{type(told).__name__}: {told}")
            if getattr(told, "exit_code", EXIT_ERROR) == EXIT_ERROR:
                # The process's log keeps the traceback; on the terminal, whoever called shows it.
                _logger.exception("the run failed", extra={"file_only": True})
            elif crew.num_processes > 1:
                _logger.error("%s", told)  # of several processes, each one's log tells its end
            if told is error:
                raise
            raise told from error


def _open_workdir(path: str | Path, make_parent: bool, crew: Alone) -> tuple[Workdir, str]:
    """Make and lock the directory in the first process; the others must then find its lock there."""
    make_workdir = functools.partial(Workdir, path, process=crew.index, num_processes=crew.num_processes)
    opened: list[tuple[Workdir, str]] = []

    def make() -> str:
        workdir = make_workdir(make_parent=make_parent)
        opened.append((workdir, workdir.lock()))
        return workdir.run_id

    run_id = crew.from_first("the workdir", make)
    if crew.num_processes > 1:
        seen = run_id
        if crew.index:
            seen = make_workdir(create=False).holder() if os.path.isdir(path) else ""
        strangers = [str(number) for number, found in enumerate(crew.gather("the lock", seen)) if found != run_id]
        if strangers:
            for workdir, _ in opened:
                workdir.release()
            raise WorkdirError(
                f"The workdir {os.path.abspath(path)} of process 0 is not that of process {', '.join(strangers)}: the "
                "path leads to another directory there. Give a --workdir= on a file system that all nodes share."
            )
    if not opened:
        opened.append((make_workdir(create=False), ""))
        opened[0][0].start_heartbeat()
    return opened[0]


def _state_after(error: BaseException) -> str:
    if isinstance(error, NonFiniteError):
        return "nonfinite"
    if isinstance(error, StoppedError | KeyboardInterrupt):
        return "preempted"
    return "failed"
