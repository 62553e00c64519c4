"""`doctor` finds the faults that a run would end with, before it begins."""

import json
import signal

import psutil
import pytest

from tests import mounts
from tests.doctor import recordings
from tests.faults.trial import COMMAND


def rows(here):
    """What --json wrote, by check."""
    return {each["check"]: each for each in json.loads((here / "out.json").read_text())["findings"]}


def failing(cli, here, *flags, **keys):
    """Give the rows that fail."""
    ended = cli.run("doctor", *COMMAND, "--json=out.json", *flags, **keys)
    assert ended.returncode == 5, ended.output
    assert "Traceback" not in ended.output
    found = {name: row["found"] for name, row in rows(here).items() if row["status"] == "fail"}
    assert f"failed: {', '.join(found)}" in ended.stdout
    assert all(row["advice"] for row in rows(here).values() if row["status"] in ("fail", "warn"))
    return found


@pytest.mark.parametrize("coordinator", ["nowhere.invalid:8476", "127.0.0.1:99999", ""])
def test_a_wrong_coordinator(cli, here, coordinator):
    environ = {"JAXTRAIN_NUM_PROCESSES": "2", "JAXTRAIN_PROCESS_ID": "1", "JAXTRAIN_COORDINATOR": coordinator}
    found = failing(cli, here, env=environ)
    assert set(found) == {"coordinator"}
    assert (coordinator.partition(":")[0] or "JAXTRAIN_COORDINATOR") in found["coordinator"]


def test_a_read_only_workdir(cli, here):
    (here / "w").mkdir()
    with mounts.read_only(here / "w"):
        found = failing(cli, here)
    assert found == {"workdir": f"{here / 'w'} cannot be written: Read-only file system"}


def test_a_missing_secret(cli, here):
    found = failing(cli, here, "--config.data.token=env:SERVICE_TOKEN", env={"SERVICE_TOKEN": None})
    assert found == {"secrets": "not set or empty: SERVICE_TOKEN (--config.data.token)"} | {
        name: text for name, text in found.items() if "SERVICE_TOKEN" in text
    }
    assert rows(here)["data"]["found"] == "a secret is missing"


def test_a_secret_that_is_set_is_shown_nowhere(cli, here):
    environ = {"SERVICE_TOKEN": "tok-7Kd92Lq", "NCCL_DEBUG_FILE": "tok-7Kd92Lq"}
    ended = cli.run("doctor", *COMMAND, "--config.data.token=env:SERVICE_TOKEN", "--json=out.json", env=environ)
    assert ended.returncode == 0, ended.output
    assert rows(here)["secrets"]["found"] == "SERVICE_TOKEN set"
    assert "tok-7Kd92Lq" not in ended.output + (here / "out.json").read_text()
    assert rows(here)["nccl"]["found"] == "NCCL_DEBUG_FILE=<redacted>"


def test_a_full_disk(cli, here):
    with mounts.small_disk(here / "w", "1m") as disk:
        mounts.fill(disk)
        found = failing(cli, here)
    assert "No space left on device" in found["workdir"]
    assert "0.0 MB free" in found["disk space"]
    assert set(found) == {"workdir", "disk space"}


def test_a_disk_without_room_for_the_checkpoints(cli, here):
    with mounts.small_disk(here / "w", "8m"):
        found = failing(cli, here, "--config.task.model.features=(100000,)")
    assert set(found) == {"disk space"}
    assert "needed for 4 checkpoints of 10.8 MB" in found["disk space"]


def test_data_that_is_not_there(cli, here):
    (here / "rows.npz").unlink()
    found = failing(cli, here)
    assert set(found) == {"data"}
    assert "rows.npz" in found["data"]


def test_a_config_that_does_not_fit(cli, here):
    found = failing(cli, here, "--config.batch_size=7")
    assert set(found) == {"experiment"}
    assert "--config.batch_size=7: not divisible by 2 microbatches" in found["experiment"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "cannot open shared object file"),
        ("import time; time.sleep(600)", "no end within 4 s"),
        ("import os; os.abort()", "ended by SIGABRT"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_jax_that_is_broken_still_gives_a_table(cli, here, code, told):
    (here / "jax").mkdir()  # the current directory is searched first
    (here / "jax/__init__.py").write_text(code)
    # Reading the config waits as long, and does not need JAX.
    found = failing(cli, here, "--max_secs=4")
    assert told in found["jax"]
    assert set(found) == {"jax"}
    table = rows(here)
    assert (table["config"]["status"], table["secrets"]["status"], table["workdir"]["status"]) == ("ok", "ok", "ok")
    for name in ("devices", "experiment", "data"):
        assert table[name]["status"] == "n/a"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_doctor_that_is_stopped(cli, here, signum):
    (here / "jax").mkdir()
    (here / "jax/__init__.py").write_text("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)")
    run = cli.start("doctor")
    run.wait_for(lambda: (here / "pid").exists() and (here / "pid").read_text())
    child = psutil.Process(int((here / "pid").read_text()))
    run.send(signum)
    assert run.finish(20).returncode == (130 if signum == signal.SIGINT else -signum)
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_config_file_that_hangs(cli, here):
    (here / "tiny.py").write_text("import time; time.sleep(600)")
    found = failing(cli, here, "--max_secs=4")
    assert "no end within 4 s" in found["config"]


def test_a_driver_that_does_not_answer(cli, here):
    path = recordings.install(here / "bin", recordings.MISMATCH)
    found = failing(cli, here, env={"PATH": path})
    assert set(found) == {"driver"}
    assert "version mismatch" in found["driver"]


def test_gpus_that_jax_does_not_use_are_told(cli, here):
    path = recordings.install(here / "bin", recordings.A100)
    ended = cli.run("doctor", *COMMAND, "--json=out.json", env={"PATH": path})
    assert ended.returncode == 0, ended.output
    table = rows(here)
    assert table["driver"]["found"].startswith("8 x NVIDIA A100-SXM4-80GB")
    assert table["links"]["found"] == "28 pairs NV12"
    assert "the GPUs are not used" in table["variables"]["found"]
    assert "although the driver shows 8 GPUs" in table["devices"]["found"]
