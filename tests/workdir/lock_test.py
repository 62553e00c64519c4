import json
import os
import re
import shutil
import time

import pytest

from jaxtrain.errors import WorkdirError
from jaxtrain.workdir import lock as lock_module
from jaxtrain.workdir.lock import WATCH_SECS, Lock

HOLD = """
import os, sys, pathlib, time
from jaxtrain.workdir.lock import Lock
lock = Lock(pathlib.Path("lock"), "first")
print(lock.acquire())
{more}
print("held", flush=True)
time.sleep(60)
"""


def hold(cli, more=""):
    run = cli.start(command=["-c", HOLD.format(more=more)])
    run.wait_for_output("held")
    return run


def test_a_second_run_is_refused_and_told_who_the_first_is(cli, tmp_path):
    run = hold(cli)
    before = (tmp_path / "lock").read_text()
    with pytest.raises(WorkdirError, match=rf"in use by run first \(pid {run.pid} on .*, since 20") as caught:
        Lock(tmp_path / "lock", "second").acquire()
    assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "lock").read_text() == before


def test_the_lock_of_a_killed_run_is_taken_over(cli, tmp_path):
    run = hold(cli)
    run.kill()
    start = time.monotonic()
    notice = Lock(tmp_path / "lock", "second").acquire()
    assert re.search(rf"run first \(pid {run.pid} on", notice)
    assert time.monotonic() - start < 2
    assert json.loads((tmp_path / "lock").read_text())["run_id"] == "second"


def test_a_released_lock_is_free(tmp_path):
    first = Lock(tmp_path / "lock", "first")
    first.acquire()
    first.release()
    assert Lock(tmp_path / "lock", "second").acquire() == ""


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(cli, tmp_path):
    run = hold(cli, more="pid = os.fork()\nif pid == 0:\n    time.sleep(60)\n    os._exit(0)")
    run.kill()
    assert [process.pid for process in run.members()]  # the child lives
    assert "run first" in Lock(tmp_path / "lock", "second").acquire()


def test_a_copy_of_a_held_workdir_is_free(cli, tmp_path):
    hold(cli)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "lock", tmp_path / "copy" / "lock")
    start = time.monotonic()
    assert Lock(tmp_path / "copy" / "lock", "second").acquire() == ""
    assert time.monotonic() - start < 2


def test_garbage_in_the_lock_file_is_a_free_lock(tmp_path):
    (tmp_path / "lock").write_bytes(b"\0\xff{")
    assert Lock(tmp_path / "lock", "second").acquire() == ""


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(WorkdirError, match="Is a directory"):
        Lock(tmp_path, "second").acquire()


# A holder on another machine: the kernel here knows nothing of it.


class Waiting:
    """A clock that only waiting moves."""

    def __init__(self, meanwhile=lambda: None):
        self.now = 0.0
        self._meanwhile = meanwhile

    def clock(self):
        return self.now

    def sleep(self, secs):
        self.now += secs
        self._meanwhile()


def held_elsewhere(path):
    """Returns the lock of a run whose kernel lock is not seen here."""
    lock = Lock(path, "first", boot="another machine")
    lock.acquire()
    lock_module.fcntl.flock(lock._descriptor, lock_module.fcntl.LOCK_UN)
    return lock


def test_a_run_on_another_machine_that_shows_a_heartbeat_is_alive(tmp_path):
    first = held_elsewhere(tmp_path / "lock")
    waiting = Waiting(lambda: waiting.now >= 5 and first.beat())
    second = Lock(tmp_path / "lock", "second", clock=waiting.clock, sleep=waiting.sleep)
    with pytest.raises(WorkdirError, match="in use by run first"):
        second.acquire()
    assert 5 <= waiting.now < 6


@pytest.mark.parametrize("jump", [0, -1e9, 1e9])
def test_a_run_on_another_machine_without_a_heartbeat_is_dead_whatever_the_clocks_say(tmp_path, monkeypatch, jump):
    held_elsewhere(tmp_path / "lock")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    os.utime(tmp_path / "lock", (real() - jump, real() - jump))
    waiting = Waiting()
    second = Lock(tmp_path / "lock", "second", clock=waiting.clock, sleep=waiting.sleep)
    assert "run first" in second.acquire()
    assert WATCH_SECS <= waiting.now < WATCH_SECS + 1


@pytest.mark.parametrize("case", ["alive", "killed", "copied"])
def test_without_kernel_locks_the_process_decides(cli, tmp_path, monkeypatch, case):
    run = hold(cli)
    path = tmp_path / "lock"
    if case == "killed":
        run.kill()
    elif case == "copied":
        path = shutil.copy(path, tmp_path / "copy")

    def unsupported(*_):
        raise OSError(lock_module.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock_module.fcntl, "flock", unsupported)
    second = Lock(path, "second")
    if case == "alive":
        with pytest.raises(WorkdirError, match="in use by run first"):
            second.acquire()
    else:
        assert ("run first" in second.acquire()) == (case == "killed")
