import json
import logging
import time

import pytest

from jaxtrain.workdir.status import Status
from tests import mounts


def read(path):
    return json.loads(path.read_text())


def test_the_status_says_what_the_run_does_and_who_it_is(tmp_path):
    path = tmp_path / "status.json"
    status = Status([path], "abc")
    status.write("preempted", 12, "SIGTERM")
    told = read(path)
    assert (told["state"], told["step"], told["reason"], told["run_id"]) == ("preempted", 12, "SIGTERM", "abc")
    assert told["beats"] == 1
    assert abs(told["heartbeat"] - time.time()) < 60


def test_a_heartbeat_before_there_is_a_state_writes_nothing(tmp_path):
    status = Status([tmp_path / "status.json"], "abc")
    status.beat()
    assert not (tmp_path / "status.json").exists()


def test_an_unknown_state_is_our_own_mistake(tmp_path):
    with pytest.raises(AssertionError):
        Status([tmp_path / "status.json"], "abc").write("ok", 1)


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_setting_the_clock_does_not_change_intervals(tmp_path, monkeypatch, jump):
    status = Status([tmp_path / "status.json"], "abc")
    status.write("running", 1)
    before = read(tmp_path / "status.json")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    status.beat()
    after = read(tmp_path / "status.json")
    assert 0 <= after["elapsed_secs"] - before["elapsed_secs"] < 10
    assert after["beats"] == before["beats"] + 1


def test_a_full_disk_is_one_warning_and_the_next_heartbeat_tries_again(tmp_path, caplog):
    with mounts.small_disk(tmp_path / "disk") as disk:
        status = Status([disk / "status.json"], "abc")
        status.write("running", 1)
        ballast = mounts.fill(disk)
        status.write("running", 2, "x" * 10_000)
        status.beat()
        assert read(disk / "status.json")["step"] == 1
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
        ballast.unlink()
        status.beat()
        assert read(disk / "status.json")["step"] == 2
