"""Rows 25 to 27, 36 and 37 of the faults: a workdir in use, a run that has changed, another clock, another place."""

import os
import shutil
import signal
import subprocess

from tests.faults import trial
from tests.faults.trial import COMMAND, assert_same_run, saved_steps, status


def test_a_workdir_in_use_is_refused_and_one_of_a_dead_run_taken_over(cli, here, reference):
    trial.hold(here, 4)
    first = cli.start(*COMMAND)
    first.wait_for(lambda: trial.is_held(here, 4))
    second = cli.run(*COMMAND)
    assert second.returncode == 2, second.output
    run_id = status(here / "w")["run_id"]
    assert f"The workdir {here}/w is in use by run {run_id} (pid {first.pid} on " in second.stderr
    assert "Traceback" not in second.output
    assert status(here / "w")["run_id"] == run_id
    first.kill()
    trial.release(here)
    third = cli.run(*COMMAND)
    assert third.returncode == 0, third.output
    assert f"Took over the workdir from run {run_id} (pid {first.pid} on " in third.stdout
    assert_same_run(here / "w", reference)


def test_another_run_is_refused_with_what_differs_and_where_it_could_live(cli, here, reference):
    shutil.copytree(reference, here / "w")
    changes = {"seed": 1, "batch_size": 16, "task.model.dropout": 0.5, "optimizer.type": "optax:adam"}
    flags = [f"--config.{key}={value}" for key, value in changes.items()]
    ended = cli.run(*COMMAND, *flags)
    assert ended.returncode == 2, ended.output
    for told in ("seed: 0 -> 1", "batch_size: 8 -> 16", "dropout: 0.2 -> 0.5", "optax:adamw -> optax:adam"):
        assert told in ended.stderr.replace("'", "").replace('"', "")
    assert f"--workdir={here}/w-2" in ended.stderr
    assert "--allow_drift" in ended.stderr
    assert "Traceback" not in ended.output
    assert saved_steps(here / "w") == [3, 6, 9, 12]


def test_another_length_is_a_notice_another_log_is_nothing_and_drift_can_be_allowed(cli, here, reference):
    shutil.copytree(reference, here / "w")
    changes = ("--config.duration=15 steps", "--config.log.every=3 steps", "--config.seed=7")
    ended = cli.run(*COMMAND, *changes, "--allow_drift")
    assert ended.returncode == 0, ended.output
    assert "changed since the last launch: duration: " in ended.stdout
    assert "12 steps" in ended.stdout
    assert "15 steps" in ended.stdout
    assert "allowed to differ from the run so far: seed: 0 -> 7" in ended.stdout
    assert "log.every" not in ended.output
    assert trial.lines(here / "w")[: len(trial.lines(reference))] == trial.lines(reference)
    assert saved_steps(here / "w") == [3, 6, 9, 12, 15]


def test_another_version_of_a_library_or_of_the_code_is_a_notice_with_both(cli, here, reference):
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    def commit(text: str) -> str:
        (here / "model.txt").write_text(text)
        git("add", "model.txt")
        git("commit", "-m", text)
        return git("rev-parse", "HEAD")

    git("init")
    old = commit("old")
    trial.hold(here, 4)
    run = cli.start(*COMMAND)
    run.wait_for(lambda: trial.is_held(here, 4))
    run.send(signal.SIGTERM)
    run.wait_for_output("stopping after this step")
    trial.release(here)
    assert run.finish(30).returncode == 75

    new = commit("new")
    (here / "installed/numpy-99.0.dist-info").mkdir(parents=True)
    (here / "installed/numpy-99.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 99.0\n")
    path = os.pathsep.join([str(here / "installed"), str(trial.ROOT)])
    ended = cli.run(*COMMAND, env={"PYTHONPATH": path})
    assert ended.returncode == 0, ended.output
    assert "-> 99.0" in ended.stdout
    assert old in ended.stdout
    assert new in ended.stdout
    assert "Traceback" not in ended.output
    assert_same_run(here / "w", reference)


def test_a_clock_that_jumps_changes_nothing_but_the_times_told(cli, here, reference):
    # A year back after step 3 and two forward after step 8, and the next start is a year back again.
    clock = "--config.callbacks.clock.type=tests.faults.parts:SetClock"
    jumps = ("--config.callbacks.clock.steps=(1, 3, 8)", "--config.callbacks.clock.hours=(0.0, -8766.0, 8766.0)")
    trial.hold(here, 10)
    run = cli.start(*COMMAND, clock, *jumps)
    run.wait_for(lambda: trial.is_held(here, 10))
    run.wait_for(lambda: saved_steps(here / "w") == [3, 6, 9])
    run.kill()
    trial.release(here)
    os.utime(here / "w/checkpoints/3", (2**31, 2**31))  # the oldest one looks newest
    ended = cli.run(
        *COMMAND, clock, "--config.callbacks.clock.steps=(10,)", "--config.callbacks.clock.hours=(-8766.0,)"
    )
    assert ended.returncode == 0, ended.output
    assert_same_run(here / "w", reference)
    lines = list(trial.read_lines(here / "w/metrics.jsonl"))
    times = [line["time"] for line in lines]
    assert times != sorted(times)  # the clock did jump
    assert all(0 < line["step_secs"] < 60 and line["data_wait_secs"] < 60 for line in lines if line["split"] == "train")


def test_a_workdir_that_was_copied_or_moved_resumes_there(cli, here, reference):
    trial.hold(here, 7)
    run = cli.start(*COMMAND)
    run.wait_for(lambda: trial.is_held(here, 7))
    run.wait_for(lambda: saved_steps(here / "w") == [3, 6])
    subprocess.run(["cp", "-r", here / "w", here / "copied"], check=True)  # of a run that lives
    trial.hold(here, 0)
    assert run.finish(60).returncode == 0
    assert_same_run(here / "w", reference)

    ended = cli.run("--config=tiny.py", "--workdir=copied")
    assert ended.returncode == 0, ended.output
    assert_same_run(here / "copied", reference)

    shutil.rmtree(here / "w/checkpoints/12")
    (here / "elsewhere").mkdir()
    (here / "w").rename(here / "elsewhere/moved")
    ended = cli.run("--config=tiny.py", "--workdir=elsewhere/moved")
    assert ended.returncode == 0, ended.output
    assert_same_run(here / "elsewhere/moved", reference)
