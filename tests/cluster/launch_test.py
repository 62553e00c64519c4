import json
import signal
import time

import psutil
import pytest

from tests.cluster import group
from tests.faults import trial


def start(cli, *more):
    return cli.start("launch", "--processes=2", *group.COMMAND, *more)


def children(launched):
    return [child for child in psutil.Process(launched.pid).children() if child.status() != psutil.STATUS_ZOMBIE]


def held_at(tmp_path, step):
    (tmp_path / "hold").write_text(str(step))
    return lambda: (tmp_path / "held").exists()


def gone(processes):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(
        process.is_running() and process.status() != "zombie" for process in processes
    ):
        time.sleep(0.05)
    return not any(process.is_running() and process.status() != "zombie" for process in processes)


def test_it_trains_shows_whose_line_is_whose_and_keeps_them(cli, tmp_path):
    end = cli.run("launch", "--processes=2", "--devices_per_process=2", *group.COMMAND)
    assert end.returncode == 0, end.output
    assert trial.status(tmp_path / "w")["state"] == "finished"
    (entry,) = json.loads((tmp_path / "w" / "manifest.json").read_text())
    assert (entry["num_processes"], entry["devices"]["count"]) == (2, 4)
    shown = [line for line in end.stdout.splitlines() if line.startswith("[0] ")]
    kept = (tmp_path / "w" / "logs" / "output-0.log").read_text().splitlines()
    assert [line[4:].rstrip() for line in shown] == [line.rstrip() for line in kept]
    assert any("step 12/12" in line for line in kept)
    assert (tmp_path / "w" / "logs" / "output-1.log").exists()


def test_a_signal_goes_to_all_and_the_same_command_goes_on(cli, tmp_path):
    held = held_at(tmp_path, 5)
    launched = start(cli, "--max_restarts=3")
    launched.wait_for(held)
    launched.send(signal.SIGTERM)
    launched.wait_for_output("stopping after this step")
    (tmp_path / "hold").unlink()
    end = launched.finish()
    assert end.returncode == 75, end.output
    assert trial.status(tmp_path / "w")["state"] == "preempted"
    assert start(cli).finish().returncode == 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_it(signum, cli, tmp_path):
    held = held_at(tmp_path, 5)
    launched = start(cli)
    launched.wait_for(held)
    started = children(launched)
    assert len(started) == 2
    launched.send(signum)
    if signum == signal.SIGTERM:
        (tmp_path / "hold").unlink()
    launched.finish(30)
    assert gone(started)


def test_one_that_fails_ends_all_with_its_code(cli, tmp_path):
    (tmp_path / "raise-1").write_text("4")
    launched = start(cli)
    end = launched.finish(60)
    assert end.returncode == 1, end.output
    assert "[1] " in end.stdout
    assert "out of coffee" in end.stdout


def test_a_killed_process_is_started_again_and_the_run_gets_to_its_end(cli, tmp_path):
    held = held_at(tmp_path, 7)
    launched = start(cli, "--max_restarts=1")
    launched.wait_for(held)
    children(launched)[-1].kill()
    (tmp_path / "hold").unlink()
    end = launched.finish()
    assert end.returncode == 0, end.output
    assert "was ended by SIGKILL" in end.stdout
    assert "restart 1 of 1" in end.stdout
    assert trial.status(tmp_path / "w")["state"] == "finished"


def test_without_a_newer_checkpoint_it_gives_up_and_says_why(cli, tmp_path):
    (tmp_path / "raise-0").write_text("2")
    end = start(cli, "--max_restarts=2").finish()
    assert end.returncode == 1, end.output
    assert "given up: 2 restarts in a row brought the run no further than any checkpoint" in end.stdout
    assert len(json.loads((tmp_path / "w" / "manifest.json").read_text())) == 3


def test_a_refusal_is_not_tried_again(cli):
    end = start(cli, "--max_restarts=2", "--config.batch_size=7").finish()
    assert end.returncode == 2, end.output
    assert "restart" not in end.stdout
