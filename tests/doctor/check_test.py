import time

import pytest

from jaxtrain import doctor, redact
from jaxtrain.doctor import programs
from jaxtrain.doctor.check import Check, make
from jaxtrain.doctor.finding import ok, warn
from jaxtrain.doctor.machine import Machine


def test_a_check_gives_its_finding():
    assert make(Check("a", 5, lambda machine: ok("fine")), Machine()) == ok("fine")


def test_an_exception_is_a_row():
    def look(machine):
        raise KeyError("gone")

    found = make(Check("a", 5, look), Machine())
    assert (found.status, found.found) == ("fail", "the check itself failed: KeyError: 'gone'")


@pytest.mark.parametrize(("secs", "max_secs", "told"), [(0.25, None, "3.25 s"), (60, 0.5, "3.5 s")])
def test_a_check_that_hangs_is_given_up(secs, max_secs, told):
    found = make(Check("a", secs, lambda machine: time.sleep(30)), Machine(max_secs=max_secs))
    assert (found.status, found.found) == ("fail", f"no answer within {told}")


def test_no_secret_is_in_a_row(monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "sentinel-of-the-check")
    redact.resolve("env:SERVICE_TOKEN")
    found = make(Check("a", 5, lambda machine: warn("it is sentinel-of-the-check", "sentinel-of-the-check")), Machine())
    assert "sentinel" not in found.found + found.advice


def test_the_order_is_that_of_the_list_and_what_still_runs_is_killed(monkeypatch):
    killed = []
    monkeypatch.setattr(programs, "kill_all", lambda: killed.append(True))
    checks = tuple(Check(name, 5, lambda machine: ok("fine")) for name in "cab")
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert [name for name, _ in doctor.examine(Machine())] == ["c", "a", "b"]
    assert killed == [True]


def test_names_are_distinct_and_deadlines_are_positive():
    assert len({check.name for check in doctor.CHECKS}) == len(doctor.CHECKS)
    assert all(check.secs > 0 for check in doctor.CHECKS)
