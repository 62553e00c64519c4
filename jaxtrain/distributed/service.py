"""What process 0 does for all processes of a run: it counts them in, collects what they exchange, and notices losses.

One thread with an event loop holds all of it, so nothing here is locked. Messages are objects of JSON, one a line.
"""

import asyncio
import dataclasses
import json
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

_logger = logging.getLogger(__name__)

MAX_LINE = 2**22  # bytes
TELL_SECS = 10.0  # between two lines about whom all wait for


@dataclasses.dataclass
class Member:
    """A process that is here. about: where it runs.   heard: when it was last heard, by the monotonic clock."""

    about: Mapping[str, Any]
    writer: asyncio.StreamWriter
    heard: float
    has_left: bool = False


@dataclasses.dataclass
class Round:
    """One exchange: the values so far, and since when the first one waits."""

    since: float
    values: dict[int, Any] = dataclasses.field(default_factory=dict)
    told: float = 0.0


class Service:
    """Serves `num_processes` clients (crew.py) until `close`. Raises OSError if the port is taken."""

    def __init__(self, host: str, port: int, num_processes: int, silence_secs: float, init_secs: float):
        self.num_processes = num_processes
        self._silence_secs = silence_secs
        self._init_secs = init_secs
        self._members: dict[int, Member] = {}
        self._rounds = {"start": Round(time.monotonic())}  # whose values are the members
        self._stops: list[Mapping[str, Any]] = []  # that were asked for; of the first one, it is being found out when
        self._decided = 0  # how far-reaching the stop is that was decided
        self._begun: dict[int, int] = {}
        self._is_over = False
        self._socket = socket.create_server((host, port), backlog=1024)
        self.port = self._socket.getsockname()[1]
        self._has_started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="crew-service", daemon=True)
        self._thread.start()
        self._has_started.wait()

    def close(self, wait_secs: float = 0.0) -> None:
        """End the service, once all others have gone or after `wait_secs`."""
        deadline = time.monotonic() + wait_secs
        while time.monotonic() < deadline and any(number for number in self._members):
            time.sleep(0.02)
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(2.0)

    async def _run(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=MAX_LINE)
        watch = asyncio.create_task(self._watch())
        self._has_started.set()
        await self._ending.wait()
        watch.cancel()
        server.close()
        for member in self._members.values():
            member.writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = -1
        try:
            hello = await _read(reader)
            if hello is None or (index := self._admit(hello, writer)) < 0:
                writer.close()
                return
            while (message := await _read(reader)) is not None:
                self._members[index].heard = time.monotonic()
                self._take(index, message)
        except (OSError, ValueError, KeyError, TypeError):  # it broke, or something else talks to this port
            writer.close()
        except asyncio.CancelledError:  # the service ends; asyncio of Python 3.11 would print it
            return
        if index in self._members and self._members[index].writer is writer:
            self._gone(index, "its connection ended")

    def _admit(self, hello: Mapping[str, Any], writer: asyncio.StreamWriter) -> int:
        """Take in a process that says who it is. -1: it cannot be one of these."""
        about = hello.get("hello")
        if not isinstance(about, dict):
            return -1
        index, size = about["index"], about["num_processes"]
        if size != self.num_processes:
            reason = f"{where(about)} was started as one of {size} processes, process 0 as one of {self.num_processes}"
        elif index in self._members:
            reason = f"two processes were started as process {index}: {where(self._members[index].about)} and "
            reason += where(about)
        else:
            self._members[index] = Member(about, writer, time.monotonic())
            if len(self._members) == self.num_processes:
                self._tell({"start": [self._members[number].about for number in range(size)]})
                self._rounds.pop("start")
            return index
        _send(writer, {"refused": reason})
        self._tell({"refused": reason})
        return -1

    def _take(self, index: int, message: Mapping[str, Any]) -> None:
        if "put" in message:
            current = self._rounds.setdefault(message["put"], Round(time.monotonic()))
            current.values[index] = message["value"]
            if len(current.values) == self.num_processes:
                del self._rounds[message["put"]]
                if message["put"] == "run":  # another one begins
                    self._stops, self._decided = [], 0
                values = [current.values[number] for number in range(self.num_processes)]
                self._tell({"all": message["put"], "values": values})
        elif "tick" in message:
            self._tell(message)
        elif "stop" in message:
            self._stops.append(message)
            if len(self._stops) == 1:
                self._hold()
        elif "begun" in message:
            self._begun[index] = message["begun"]
            if len(self._begun) == self.num_processes:
                self._decide()
        elif "failed" in message:
            self._lost(index, message["failed"])
        elif "left" in message:
            self._members[index].has_left = True

    def _hold(self) -> None:
        """Ask each process to begin no turn, and which one it has begun, if a stop was asked for that says more."""
        self._stops = [stop for stop in self._stops if _reach(stop) > self._decided]
        if self._stops:
            self._tell({"hold": True})

    def _decide(self) -> None:
        stop = self._stops.pop(0)
        self._decided = _reach(stop)
        self._tell({**stop, "stop_after": max(self._begun.values())})
        self._begun = {}
        self._hold()

    def _gone(self, index: int, how: str) -> None:
        member = self._members.pop(index)
        member.writer.close()
        if not member.has_left:
            self._lost(index, f"{where(member.about)} is lost: {how}")

    def _lost(self, index: int, reason: str) -> None:
        if not self._is_over:
            self._is_over = True  # what follows is what the others do about it
            self._tell({"lost": reason, "by": index})

    async def _watch(self) -> None:
        """Say that the service lives; notice silence; tell whom all wait for."""
        while True:
            await asyncio.sleep(min(1.0, self._silence_secs / 4))
            now = time.monotonic()
            self._tell({"beat": True})
            for index, member in list(self._members.items()):
                if now - member.heard > self._silence_secs:
                    self._gone(index, f"nothing was heard of it for {self._silence_secs:g} s")
            for name, current in self._rounds.items():
                is_late = name == "start" and now - current.since > self._init_secs
                if is_late or now - max(current.since, current.told) >= TELL_SECS:
                    current.told = now
                    self._tell({"waiting": name, "secs": now - current.since, "late": is_late, **self._absent(name)})

    def _absent(self, name: str) -> dict[str, Any]:
        present = self._members if name == "start" else self._rounds[name].values
        numbers = range(self.num_processes)
        return {
            "absent": [self._name(number) for number in numbers if number not in present],
            "present": [self._name(number) for number in numbers if number in present],
        }

    def _name(self, index: int) -> str:
        return where(self._members[index].about) if index in self._members else f"process {index}"

    def _tell(self, message: Mapping[str, Any]) -> None:
        for member in self._members.values():
            _send(member.writer, message)


def _reach(stop: Mapping[str, Any]) -> int:
    """A stop that is to be resumed ends more than one that lets the run finish."""
    return 2 if stop["is_resumable"] else 1


def where(about: Mapping[str, Any]) -> str:
    """Name a process for a person."""
    return f"process {about['index']} (pid {about['pid']} on {about['host']})"


def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    line = await reader.readline()
    message = json.loads(line) if line else None
    return message if isinstance(message, dict) else None
