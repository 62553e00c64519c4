"""Programs run to the end or to a deadline: those of the driver, and Python where it may hang or be killed."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "\0doctor "  # begins the lines that a probe means for its parent; others are a config's or a library's
_LAST_WORDS = 400  # characters of an error output that are shown
_running: set[subprocess.Popen[bytes]] = set()


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a program ended. returncode: None when it ran past its deadline and was killed, or could not be started."""

    returncode: int | None
    stdout: str
    stderr: str
    trouble: str = ""


def run(argv: Sequence[str], secs: float, environ: Mapping[str, str] | None = None) -> Ended:
    """Run a program for at most `secs` seconds; it and what it started are then killed. Raises nothing."""
    try:
        process = subprocess.Popen(
            list(argv),
            env=None if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Ended(None, "", "", f"{argv[0]} cannot be started: {error.strerror}")
    _running.add(process)
    trouble = ""
    try:
        out, err = process.communicate(timeout=secs)
    except subprocess.TimeoutExpired:
        trouble = f"no end within {secs:g} s"
        _kill(process)
        try:
            out, err = process.communicate(timeout=2.0)
        except subprocess.TimeoutExpired as error:  # it cannot be killed: a driver or a disk holds it
            out, err = error.stdout or b"", error.stderr or b""
    finally:
        _running.discard(process)
    returncode = None if trouble else process.returncode
    return Ended(returncode, out.decode(errors="replace"), err.decode(errors="replace"), trouble)


def kill_all() -> None:
    """Kill what still runs, as when the doctor itself is interrupted."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a probe told, by the name of what it told of, and why there is no more; "" when it came to its end."""

    told: Mapping[str, Mapping[str, Any]]
    trouble: str = ""
    kind: str = ""  # the class of the exception that ended it, "" for any other end

    def __contains__(self, name: str) -> bool:
        return name in self.told

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return self.told[name]


def probe(arguments: Sequence[str], secs: float, environ: Mapping[str, str] | None = None) -> Reply:
    """Run `jaxtrain.doctor.probe` and read what it tells (probe.py says what that is)."""
    ended = run([sys.executable, "-m", "jaxtrain.doctor.probe", *arguments], secs, environ)
    told: dict[str, Mapping[str, Any]] = {}
    for line in ended.stdout.split("\n"):
        _, mark, text = line.partition(MARK)  # a library may have written half a line before
        if mark:
            with contextlib.suppress(ValueError):
                facts = json.loads(text)
                told[facts.pop("of")] = facts
    if "error" in told:
        return Reply(told, str(told["error"]["text"]), str(told["error"]["kind"]))
    if ended.trouble or ended.returncode or not told:
        return Reply(told, ended.trouble or how_it_ended(ended))
    return Reply(told)


def how_it_ended(ended: Ended) -> str:
    """Give an exit code or a signal, and the last lines of the error output."""
    code = ended.returncode or 0
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    lines = [line.strip() for line in (ended.stderr.strip() or ended.stdout).splitlines() if MARK not in line]
    words = " ".join(filter(None, lines[-3:]))[-_LAST_WORDS:]
    return f"{how}: {words}" if words else how
