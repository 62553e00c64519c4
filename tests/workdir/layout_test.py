import json
import os
import shutil
import stat
import time

import pytest

from jaxtrain import redact
from jaxtrain.errors import WorkdirError
from jaxtrain.workdir import Workdir
from tests import mounts


def wait_for(condition, secs=10.0):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_layout_is_made_and_private(tmp_path):
    workdir = Workdir(tmp_path / "w")
    assert stat.S_IMODE(workdir.path.stat().st_mode) == 0o700
    for directory in (workdir.tensorboard_dir, workdir.logs_dir, workdir.checkpoints_dir, workdir.autotune_dir):
        assert directory.is_dir()
    Workdir(tmp_path / "w")  # again is fine


@pytest.mark.parametrize("make_parent", [False, True])
def test_a_missing_parent_is_refused_unless_it_is_ours_to_make(tmp_path, make_parent):
    path = tmp_path / "runs" / "w"
    if make_parent:
        assert Workdir(path, make_parent=True).path.is_dir()
        return
    with pytest.raises(WorkdirError, match=r"parent .*/runs does not exist"):
        Workdir(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["w", "w/checkpoints", "parent"])
def test_a_file_in_its_place_is_refused(tmp_path, place):
    path = tmp_path / ("parent/w" if place == "parent" else "w")
    if place == "w/checkpoints":
        path.mkdir()
    (tmp_path / place).write_text("mine")
    with pytest.raises(WorkdirError, match=f"{place} is a file"):
        Workdir(path)
    assert (tmp_path / place).read_text() == "mine"


@pytest.mark.parametrize("is_new", [False, True])
def test_a_read_only_place_is_refused(tmp_path, is_new):
    if not is_new:
        Workdir(tmp_path / "w")
    with mounts.read_only(tmp_path), pytest.raises(WorkdirError, match="Read-only file system"):
        Workdir(tmp_path / "w")


def test_a_full_disk_is_refused(tmp_path):
    with mounts.small_disk(tmp_path / "disk") as disk:
        Workdir(disk / "w")
        mounts.fill(disk)
        with pytest.raises(WorkdirError, match="No space left"):
            Workdir(disk / "w")


def test_looking_at_a_run_makes_nothing(tmp_path):
    with pytest.raises(WorkdirError, match="no run at"):
        Workdir(tmp_path / "w", create=False)
    assert os.listdir(tmp_path) == []
    Workdir(tmp_path / "w").write_config({"seed": 1})
    assert Workdir(tmp_path / "w", create=False).read_config() == {"seed": 1}


def test_each_launch_adds_an_entry_to_the_manifest(tmp_path):
    Workdir(tmp_path / "w").append_manifest({"argv": ["a"]})
    workdir = Workdir(tmp_path / "w")
    workdir.append_manifest({"argv": ["b"]})
    assert workdir.read_manifest() == [{"argv": ["a"]}, {"argv": ["b"]}]


def test_a_damaged_file_is_named(tmp_path):
    workdir = Workdir(tmp_path / "w")
    workdir.config_path.write_text('{"seed": ')
    with pytest.raises(WorkdirError, match=r"config\.json cannot be read"):
        workdir.read_config()
    assert workdir.read_status() is None


def test_a_config_that_cannot_be_written_leaves_the_old_one(tmp_path):
    with mounts.small_disk(tmp_path / "disk") as disk:
        workdir = Workdir(disk / "w")
        workdir.write_config({"seed": 1})
        mounts.fill(disk)
        with pytest.raises(WorkdirError, match=r"config\.json cannot be written: No space left"):
            workdir.write_config({"seed": "x" * 10_000})
        assert workdir.read_config() == {"seed": 1}


def test_the_heartbeat_moves_without_the_run_doing_anything_and_ends_with_the_lock(tmp_path):
    workdir = Workdir(tmp_path / "w")
    workdir.lock(heartbeat_secs=0.02)
    workdir.write_status("running", 3)
    workdir.progress(4)
    wait_for(lambda: workdir.read_status()["beats"] > 3 and workdir.read_status()["step"] == 4)
    workdir.release()
    beats = workdir.read_status()["beats"]
    time.sleep(0.1)
    assert workdir.read_status()["beats"] == beats
    assert workdir.lock_path.read_text() == ""
    workdir.release()  # again is fine


def test_a_moved_and_a_copied_workdir_go_on_there(tmp_path):
    workdir = Workdir(tmp_path / "w")
    workdir.lock()
    workdir.append_manifest({"n": 1})
    shutil.copytree(tmp_path / "w", tmp_path / "copy")
    copy = Workdir(tmp_path / "copy")
    assert copy.lock() == ""  # although the run it was copied from is alive
    copy.append_manifest({"n": 2})
    copy.release()
    workdir.release()
    assert workdir.read_manifest() == [{"n": 1}]
    shutil.move(tmp_path / "copy", tmp_path / "moved")
    moved = Workdir(tmp_path / "moved")
    assert moved.lock() == ""
    assert moved.read_manifest() == [{"n": 1}, {"n": 2}]
    moved.release()


def test_what_is_set_aside_is_not_seen_any_more(tmp_path):
    workdir = Workdir(tmp_path / "w")
    assert workdir.set_aside() is None
    workdir.lock()
    for number in ("1", "2"):
        (workdir.checkpoints_dir / "7").mkdir()
        workdir.write_config({"seed": number})
        workdir.metrics_path.write_text("x\n")
        (workdir.logs_dir / "process-0.log").write_text("kept\n")
        assert workdir.set_aside() == workdir.path / "set_aside" / number
        assert workdir.read_config() is None
        assert not workdir.metrics_path.exists()
        assert list(workdir.checkpoints_dir.iterdir()) == []
        assert (workdir.logs_dir / "process-0.log").exists()
        aside = workdir.path / "set_aside" / number
        assert json.loads((aside / "config.json").read_text()) == {"seed": number}
        assert (aside / "checkpoints" / "7").is_dir()
    workdir.release()


def test_no_secret_reaches_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(redact, "_redactor", redact.Redactor())
    secret = "s3ntinel-value"
    redact.add(secret)
    workdir = Workdir(tmp_path / "w")
    workdir.write_config({"data": {"options": {"url": f"https://user:{secret}@host/x?token={secret}"}}})
    workdir.append_manifest({"argv": ["--config.x=" + secret], secret: 1})
    workdir.write_status("failed", 1, f"ValueError: {secret}")
    for path in workdir.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()


def test_only_the_first_of_several_processes_writes_what_they_share(tmp_path):
    first = Workdir(tmp_path / "w", num_processes=2)
    first.lock()
    second = Workdir(tmp_path / "w", create=False, process=1, num_processes=2)
    assert second.holder() == first.run_id
    for workdir in (second, first):
        workdir.write_config({"written by": workdir.is_first})
        workdir.append_manifest({"written by": workdir.is_first})
        workdir.write_status("running", 3)
    assert first.read_config() == {"written by": True}
    assert first.read_manifest() == [{"written by": True}]
    paths = [tmp_path / "w" / "status.json", *sorted((tmp_path / "w" / "status").iterdir())]
    statuses = [json.loads(path.read_text()) for path in paths]
    assert [status["run_id"] for status in statuses] == [first.run_id, first.run_id, second.run_id]
    first.release()
    assert second.holder() == ""
    second.release()
