import os

import pytest

from jaxtrain.doctor import storage
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.programs import Reply
from tests import mounts

MB = 10**6


def test_the_nearest_directory_that_exists(tmp_path):
    assert storage.nearest(tmp_path / "a/b/c") == tmp_path
    assert storage.nearest(tmp_path) == tmp_path


def test_a_workdir_is_writable_or_can_be_made_and_nothing_stays(tmp_path):
    assert storage.judge_workdir(tmp_path, is_default=False).found == f"{tmp_path} is writable"
    assert (
        storage.judge_workdir(tmp_path / "w", is_default=False).found == f"{tmp_path / 'w'} can be made in {tmp_path}"
    )
    assert storage.judge_workdir(tmp_path / "runs/w", is_default=True).status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_parent_is_refused_as_a_run_does(tmp_path):
    found = storage.judge_workdir(tmp_path / "a/w", is_default=False)
    assert (found.status, found.found) == ("fail", f"the parent {tmp_path / 'a'} does not exist")


def test_a_file_in_its_place(tmp_path):
    (tmp_path / "w").touch()
    for workdir in (tmp_path / "w", tmp_path / "w/x"):
        assert storage.judge_workdir(workdir, is_default=False).found == f"{tmp_path / 'w'} is a file"


@pytest.mark.parametrize("part", ["", "checkpoints"])
def test_a_read_only_workdir_or_part_fails(tmp_path, part):
    (tmp_path / "w" / "checkpoints").mkdir(parents=True)
    with mounts.read_only(tmp_path / "w" / part):
        found = storage.judge_workdir(tmp_path / "w", is_default=False)
    assert (found.status, found.found) == ("fail", f"{tmp_path / 'w' / part} cannot be written: Read-only file system")
    assert storage.judge_workdir(tmp_path / "w", is_default=False).status == "ok"


def test_a_full_disk_fails(tmp_path):
    with mounts.small_disk(tmp_path / "w", "1m") as disk:
        mounts.fill(disk)
        found = storage.judge_workdir(disk, is_default=False)
        assert (found.status, "No space left on device" in found.found) == ("fail", True)
        assert storage.judge_speed(disk, 0).status == "n/a"
        assert storage.judge_space(0, 0, 0, 0).status == "fail"


def test_the_speed_is_measured_and_nothing_stays(tmp_path):
    with mounts.small_disk(tmp_path / "w", "16m") as disk:
        found = storage.judge_speed(disk, 10 * MB)
        assert "MB/s with fsync; a checkpoint of 10.0 MB takes about" in found.found
        assert os.listdir(disk) == []
        assert storage.judge_speed(disk, 10**15).status == "warn"  # takes days on any disk


@pytest.mark.parametrize(
    ("free", "present", "num_bytes", "num_checkpoints", "status", "needed"),
    [
        (1000 * MB, 0, 100 * MB, 3, "ok", "300.0 MB needed for 3 checkpoints of 100.0 MB"),
        (299 * MB, 0, 100 * MB, 3, "fail", "300.0 MB needed"),
        (310 * MB, 0, 100 * MB, 3, "warn", "little is left"),
        (150 * MB, 200 * MB, 100 * MB, 3, "ok", "100.0 MB needed"),  # two of the three are there
        (99 * MB, 900 * MB, 100 * MB, 3, "fail", "100.0 MB needed"),  # one is written before another goes
        (10 * MB, 0, 0, 0, "ok", "not known"),
    ],
)
def test_room_for_the_checkpoints_that_are_kept(free, present, num_bytes, num_checkpoints, status, needed):
    found = storage.judge_space(free, present, num_bytes, num_checkpoints)
    assert (found.status, needed in found.found) == (status, True), found


def test_checkpoints_that_are_there_count(tmp_path):
    (tmp_path / "checkpoints/7").mkdir(parents=True)
    (tmp_path / "checkpoints/7/data").write_bytes(bytes(3 * MB))
    machine = Machine(["--config=c.py"], tmp_path, environ={})
    machine.settings = Reply({"settings": {"problems": "", "secrets": [], "name": "c"}})
    machine.jax = Reply({"devices": {}})
    machine.experiment = Reply({"state": {"num_bytes": 2 * MB, "num_checkpoints": 4}})
    assert "5.0 MB needed for 4 checkpoints of 2.0 MB, 3.0 MB of which are there" in storage.check_space(machine).found


def test_without_a_workdir_there_is_nothing_to_check():
    for check in (storage.check_workdir, storage.check_speed, storage.check_space):
        assert check(Machine(environ={})).status == "n/a"


def test_a_compile_cache_that_a_run_would_use(tmp_path):
    assert storage.judge_compile_cache(str(tmp_path / "a/b"), is_jax=False).status == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    found = storage.judge_compile_cache(str(tmp_path / "open"), is_jax=False)
    assert (found.status, "other users may write to it" in found.found) == ("warn", True)
    assert storage.judge_compile_cache(str(tmp_path / "open"), is_jax=True).status == "ok"
    assert storage.judge_compile_cache("gs://bucket/cache", is_jax=True).status == "n/a"
    (tmp_path / "ro").mkdir()
    with mounts.read_only(tmp_path / "ro"):
        found = storage.judge_compile_cache(str(tmp_path / "ro"), is_jax=False)
    assert (found.status, "Read-only file system" in found.found) == ("warn", True)


def test_the_setting_of_the_config_decides(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert storage.check_compile_cache(Machine(environ={})).found == str(tmp_path / "mine/jaxtrain/compile")
    own = Machine(environ={"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "theirs")})
    assert storage.check_compile_cache(own).found == str(tmp_path / "theirs")
    off = Machine(["--config=c.py"], environ={})
    off.settings = Reply({"settings": {"compile_cache": ""}})
    assert storage.check_compile_cache(off).status == "n/a"
