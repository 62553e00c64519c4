"""One check: made within its deadline, and never an exception."""

import dataclasses
import threading
from collections.abc import Callable

from jaxtrain.doctor.finding import Finding, fail
from jaxtrain.doctor.machine import Machine
from jaxtrain.redact import redact

_GRACE_SECS = 3.0  # in which what was waited for inside is killed, and told


@dataclasses.dataclass(frozen=True)
class Check:
    """One row of the table. `look` gets `secs` seconds; what it waits for inside has a shorter limit of its own."""

    name: str
    secs: float
    look: Callable[[Machine], Finding]


def make(check: Check, machine: Machine) -> Finding:
    """Run a check in a thread that is given up after the deadline: a dead file system lets nobody interrupt it."""
    result: list[Finding] = []

    def look() -> None:
        try:
            result.append(check.look(machine))
        except Exception as error:  # noqa: BLE001 a check that cannot be made is a row too
            text = f"{type(error).__name__}: {error}"
            result.append(fail(f"the check itself failed: {text}", "See what it names; the other rows still hold."))

    thread = threading.Thread(target=look, name=f"check {check.name}", daemon=True)
    secs = machine.at_most(check.secs) + _GRACE_SECS
    thread.start()
    thread.join(secs)
    found = result[0] if result else fail(f"no answer within {secs:g} s", "Something that it asks is hanging.")
    return dataclasses.replace(found, found=redact(found.found), advice=redact(found.advice))
