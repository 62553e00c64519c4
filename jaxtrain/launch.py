"""The processes of one run, started on this machine, watched, and started again while the run gets on.

One that ends with an error ends all. No process outlives the launcher, also where that is killed.
"""

import contextlib
import ctypes
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from jaxtrain.errors import EXIT_NONFINITE, EXIT_OK, EXIT_REFUSED, EXIT_RESUMABLE, RefusedError

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECS = 0.05
_MAX_WAIT_SECS = 60.0  # before another try


@dataclasses.dataclass(frozen=True)
class Limits:
    """end_secs: what the others get to end by themselves once one has failed, before SIGTERM; then a third of that.

    wait_secs: before the first of several restarts; each further one without progress waits twice as long.
    """

    end_secs: float = 30.0
    wait_secs: float = 1.0


@dataclasses.dataclass(frozen=True)
class Group:
    """What to start. arguments: those of `train`.   devices_per_process: 0 leaves it to the processes.

    output_dir: where output-<i>.log is kept, from when the run has made it.   checkpoints_dir: tells of progress.
    """

    arguments: Sequence[str]
    num_processes: int
    devices_per_process: int
    output_dir: Path
    checkpoints_dir: Path
    limits: Limits = Limits()


def launch(group: Group, max_restarts: int, say: Callable[[str], None]) -> int:
    """Run the processes until they are finished or cannot go on. Returns the exit code of what ended them.

    An end that is no refusal, and no matter of numbers, is tried again, `max_restarts` times in a row without a newer
    checkpoint. A process that a signal ended counts as resumable.
    """
    num_tries, newest = 0, -1 if "--fresh" in group.arguments else newest_step(group.checkpoints_dir)
    while True:
        started = _Started(group, say)
        code = started.wait()
        if code in (EXIT_OK, EXIT_REFUSED, EXIT_NONFINITE) or started.num_signals:
            return 128 + started.last_signal if started.num_signals > 1 else code
        step = newest_step(group.checkpoints_dir)
        if step > newest:
            num_tries, newest = 0, step
        if num_tries >= max_restarts:
            if max_restarts:
                at = f"the checkpoint of step {newest}" if newest >= 0 else "any checkpoint"
                say(f"given up: {num_tries} restarts in a row brought the run no further than {at}")
            return code
        num_tries += 1
        group = dataclasses.replace(group, arguments=[flag for flag in group.arguments if flag != "--fresh"])
        wait_secs = min(_MAX_WAIT_SECS, group.limits.wait_secs * 2 ** (num_tries - 1))
        say(f"restart {num_tries} of {max_restarts} in {wait_secs:g} s (exit code {code})")
        if started.sleep(wait_secs):
            return code


def newest_step(checkpoints_dir: Path) -> int:
    """Give the newest step that was committed, -1 if there is none."""
    try:
        names = [path.parent.name for path in checkpoints_dir.glob("*/manifest.json")]
    except OSError:
        return -1
    return max((int(name) for name in names if name.isdecimal()), default=-1)


class _Started:
    """The processes of one try."""

    def __init__(self, group: Group, say: Callable[[str], None]):
        self.num_signals, self.last_signal = 0, 0
        self._limits, self._say = group.limits, say
        self._previous = {number: signal.signal(number, self._forward) for number in FORWARDED}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._readers = []
        port = _free_port()
        for index in range(group.num_processes):
            process = subprocess.Popen(
                [sys.executable, "-m", "jaxtrain", "train", *group.arguments],
                env=environment(group, index, port, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
                start_new_session=True,  # a Ctrl-C of the terminal comes once, from here
            )
            self.processes.append(process)
        for index, process in enumerate(self.processes):
            stored = _Stored(group.output_dir, group.output_dir / f"output-{index}.log")
            reader = threading.Thread(target=self._read, args=(index, process, stored), daemon=True)
            reader.start()
            self._readers.append(reader)

    def wait(self) -> int:
        """Wait for all of them. Gives the code of the first that failed for a reason of its own."""
        codes: list[int] = []  # in the order in which they ended
        running = dict(enumerate(self.processes))
        deadline, urge = float("inf"), [signal.SIGTERM, signal.SIGKILL]
        try:
            while running:
                for index, process in list(running.items()):
                    if process.poll() is not None:
                        del running[index]
                        codes.append(process.returncode)
                        if process.returncode:
                            self._say(f"process {index} {_ended(process.returncode)}")
                            deadline = min(deadline, time.monotonic() + self._limits.end_secs)
                if time.monotonic() > deadline:
                    self._send(urge.pop(0))
                    deadline = time.monotonic() + self._limits.end_secs / 3 if urge else float("inf")
                time.sleep(_POLL_SECS)
        finally:
            self._send(signal.SIGKILL)
            for reader in self._readers:
                reader.join(5.0)
            for number, handler in self._previous.items():
                signal.signal(number, handler)
        return root_cause(codes)

    def sleep(self, secs: float) -> bool:
        """Wait before another try; True if a signal ended the waiting."""
        with contextlib.suppress(KeyboardInterrupt):
            previous = {number: signal.signal(number, self._forward) for number in FORWARDED[:3]}
            deadline = time.monotonic() + secs
            while time.monotonic() < deadline and not self.num_signals:
                time.sleep(_POLL_SECS)
            for number, handler in previous.items():
                signal.signal(number, handler)
        return self.num_signals > 0

    def _forward(self, number: int, frame: object) -> None:
        del frame
        if number != signal.SIGUSR2:  # which only asks for a trace
            self.num_signals, self.last_signal = self.num_signals + 1, number
        self._send(signal.Signals(number))

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def _read(self, index: int, process: subprocess.Popen[bytes], stored: "_Stored") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            stored.write(line)
            self._say(f"[{index}] {line.decode(errors='replace').rstrip()}")
        stored.close()


class _Stored:
    """A file in a directory that the run makes; until it has, lines wait here."""

    def __init__(self, directory: Path, path: Path):
        self._directory, self._path = directory, path
        self._waiting: list[bytes] = []
        self._file: IO[bytes] | None = None

    def write(self, line: bytes) -> None:
        self._waiting.append(line)
        try:
            if self._file is None and self._directory.is_dir():
                self._file = open(self._path, "ab")  # noqa: SIM115  closed by `close`
            if self._file is not None:
                self._file.writelines(self._waiting)
                self._file.flush()
                self._waiting.clear()
        except OSError:  # a full disk: what runs has a log of its own
            self._waiting.clear()

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def environment(group: Group, index: int, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the variables of one process. Raises RefusedError when there are too few GPUs."""
    own = {
        **environ,
        "JAXTRAIN_NUM_PROCESSES": str(group.num_processes),
        "JAXTRAIN_PROCESS_ID": str(index),
        "JAXTRAIN_COORDINATOR": f"127.0.0.1:{port}",
        "PYTHONUNBUFFERED": "1",
    }
    count = group.devices_per_process
    if not count:
        return own
    gpus = [] if environ.get("JAX_PLATFORMS") == "cpu" else visible_gpus(environ)
    if not gpus:
        flags = [
            flag for flag in environ.get("XLA_FLAGS", "").split() if "force_host_platform_device_count" not in flag
        ]
        return {**own, "XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={count}"])}
    if len(gpus) < count * group.num_processes:
        raise RefusedError(
            f"--processes={group.num_processes} --devices_per_process={count} needs {count * group.num_processes} "
            f"GPUs, and there are {len(gpus)}."
        )
    return {**own, "CUDA_VISIBLE_DEVICES": ",".join(gpus[index * count : (index + 1) * count])}


def visible_gpus(environ: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Name the NVIDIA GPUs that a program started here sees, as CUDA_VISIBLE_DEVICES does."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
        return [name for name in names if name not in ("", "-1")]
    return [str(number) for number in range(len(list(driver.iterdir())))] if driver.is_dir() else []


def root_cause(codes: Sequence[int]) -> int:
    """Give the code of the first that ended for a reason of its own; those after it ended because of it."""
    told = [EXIT_RESUMABLE if code < 0 else code for code in codes if code]
    return next((code for code in told if code != EXIT_RESUMABLE), told[0] if told else EXIT_OK)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    killed = " (the system kills what takes too much memory)" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{killed}"


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


_libc = ctypes.CDLL(None)
