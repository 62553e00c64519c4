"""Starts `python -m jaxtrain` in subprocesses, for tests that kill, interrupt or restart a run.

    def test_a_finished_run_does_nothing(cli, tmp_path):           # the fixture of tests/conftest.py is a `Runner`
        first = cli.run("--config=c.py", "--workdir=w")            # waits; no exception for a non-zero exit code
        assert first.returncode == 0, first.output
        run = cli.start("--config=c.py", "--workdir=w2")           # returns at once: a `Run`
        run.wait_for(lambda: (tmp_path / "w2/checkpoints/3").exists())
        run.send(signal.SIGTERM)
        assert run.finish().returncode == 75

A program runs in `tmp_path` (`cwd=` overrides it), in a session of its own, with no standard input, on the CPU with one
device (`num_devices=` overrides it), with `env=` added to the environment (None removes a variable). Its output goes to
files, so a full pipe never stops it and a killed run still shows what it said. When the time is over, `finish` and
`wait_for` raise `TimedOutError` with that output. At the end of the test every process of every session that was
started is killed, by process id: also workers whose parent was killed.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECS = 120.0


class TimedOutError(AssertionError):
    """A program or a condition took longer than the test allows. Carries the output so far."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a program ended. A death by signal N is returncode -N."""

    returncode: int
    stdout: str
    stderr: str
    secs: float

    @property
    def output(self) -> str:
        return (
            f"exit code {self.returncode} after {self.secs:.1f} s\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )


def cache_dir() -> Path:
    """Make or find this user's directory for compiled programs of tests; others may not read it: it holds code."""
    path = Path(tempfile.gettempdir()) / f"jaxtrain-tests-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private directory of this user; remove it")
    return path


def environment(num_devices: int = 1) -> dict[str, str]:
    """Give the variables that put JAX on `num_devices` simulated CPU devices with the tests' shared compile cache."""
    cache = cache_dir()
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(
            (
                f"--xla_force_host_platform_device_count={num_devices}",
                # Eight device threads on a loaded two-core machine may wait long for each other.
                "--xla_cpu_collective_call_terminate_timeout_seconds=300",
            )
        ),
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache / "xla")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        # compile_cache="auto" of a run is below this, so that no test writes to the user's own cache.
        "XDG_CACHE_HOME": str(cache / "xdg"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
    }


class Run:
    """One started program. `pid` is also the id of its session and process group."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]):
        self._logs = [tempfile.TemporaryFile() for _ in ("stdout", "stderr")]  # noqa: SIM115 (closed by `close`)
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self._logs[0],
            stderr=self._logs[1],
            start_new_session=True,
        )
        self.pid = self.process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._read(0)

    @property
    def stderr(self) -> str:
        """What it has printed to standard error so far."""
        return self._read(1)

    def _read(self, index: int) -> str:
        file_descriptor = self._logs[index].fileno()
        return os.pread(file_descriptor, os.fstat(file_descriptor).st_size, 0).decode(errors="replace")

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the program itself, not to its children."""
        self.process.send_signal(signum)

    def kill(self) -> Finished:
        """SIGKILL the program, not its children, and return once it is dead."""
        self.process.kill()
        return self.finish()

    def finish(self, timeout_secs: float = TIMEOUT_SECS) -> Finished:
        """Wait until the program has ended."""
        try:
            returncode = self.process.wait(timeout_secs)
        except subprocess.TimeoutExpired:
            raise TimedOutError(self._story(f"still running after {timeout_secs} s")) from None
        return Finished(returncode, self.stdout, self.stderr, time.monotonic() - self._started)

    def wait_for(
        self, condition: Callable[[], object], timeout_secs: float = TIMEOUT_SECS, poll_secs: float = 0.01
    ) -> None:
        """Return as soon as `condition()` holds; an end of the program before that fails the test."""
        deadline = time.monotonic() + timeout_secs
        while not condition():
            if self.process.poll() is not None and not condition():
                raise AssertionError(self._story(f"ended with {self.process.returncode} before the condition held"))
            if time.monotonic() > deadline:
                raise TimedOutError(self._story(f"the condition did not hold within {timeout_secs} s"))
            time.sleep(poll_secs)

    def wait_for_output(self, text: str, timeout_secs: float = TIMEOUT_SECS) -> None:
        """Return as soon as `text` is in the program's output."""
        self.wait_for(lambda: text in self.stdout or text in self.stderr, timeout_secs)

    def members(self) -> list[psutil.Process]:
        """Give the live processes of this program's session: itself, its workers, and orphans it has left."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                continue
        return found

    def close(self) -> None:
        """Kill what is left of the session, wait until it is gone, and forget the output."""
        while members := self.members():
            for process in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.01)
        self.process.wait()
        for log in self._logs:
            log.close()

    def _story(self, what: str) -> str:
        return f"{what}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Runner:
    """Starts programs and kills what is left of them when the `with` block ends."""

    def __init__(self, cwd: Path):
        self.cwd = cwd
        self._runs: list[Run] = []

    def start(
        self,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        num_devices: int = 1,
        command: Sequence[str] = ("-m", "jaxtrain"),
    ) -> Run:
        """Start `python -m jaxtrain *args`, or another `command` of the same Python, and return at once."""
        wanted: dict[str, str | None] = {**os.environ, **environment(num_devices), **(env or {})}
        variables = {name: value for name, value in wanted.items() if value is not None}
        run = Run([sys.executable, *command, *args], cwd or self.cwd, variables)
        self._runs.append(run)
        return run

    def run(
        self,
        *args: str,
        timeout_secs: float = TIMEOUT_SECS,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        num_devices: int = 1,
        command: Sequence[str] = ("-m", "jaxtrain"),
    ) -> Finished:
        """Start `python -m jaxtrain *args` and wait until it has ended."""
        return self.start(*args, env=env, cwd=cwd, num_devices=num_devices, command=command).finish(timeout_secs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs:
            run.close()
