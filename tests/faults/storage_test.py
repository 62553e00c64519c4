"""Rows 6 to 8 of the faults: a full disk, for checkpoints or for everything else, and places that cannot be used."""

import shutil
import signal

import pytest

from tests import mounts
from tests.faults import trial
from tests.faults.trial import COMMAND, assert_same_run, saved_steps, status


def test_a_disk_full_while_saving_ends_with_4_and_says_what_is_needed(cli, here, reference):
    with mounts.small_disk(here / "w", "2m"):
        trial.hold(here, 4)
        run = cli.start(*COMMAND)
        run.wait_for(lambda: trial.is_held(here, 4))
        run.wait_for(lambda: saved_steps(here / "w") == [3])
        ballast = mounts.fill(here / "w")
        trial.release(here)
        ended = run.finish(30)
        assert ended.returncode == 4, ended.output
        assert "Traceback" not in ended.output
        told = ended.stderr
        for part in (f"{here}/w/checkpoints/6", "No space left on device", "bytes are free", "It needs about"):
            assert part in told
        assert "(steps: 3)" in told
        assert [path.name for path in (here / "w/checkpoints").iterdir()] == ["3"]
        ballast.unlink()
        assert cli.run(*COMMAND).returncode == 0
        assert_same_run(here / "w", reference)


def test_a_disk_full_for_logs_alone_is_one_warning_and_lines_lost_by_a_kill_are_named(cli, here, reference):
    lost = [("train", 4), ("validation", 5)]
    with mounts.small_disk(here / "w", "256k"), mounts.small_disk(here / "w/checkpoints", "16m"):
        trial.hold(here, 3)
        run = cli.start(*COMMAND)
        run.wait_for(lambda: trial.is_held(here, 3))
        ballast = mounts.fill(here / "w")
        trial.hold(here, 7)
        run.wait_for(lambda: trial.is_held(here, 7))
        run.wait_for(lambda: saved_steps(here / "w") == [3, 6])
        assert trial.lines(here / "w") == []
        run.send(signal.SIGKILL)
        told = run.finish(30).stdout
        assert told.count(f"{here}/w/metrics.jsonl cannot be written") == 1, told
        ballast.unlink()

        trial.hold(here, 8)
        run = cli.start(*COMMAND)
        run.wait_for(lambda: trial.is_held(here, 8))
        assert "train 4, validation 5" in run.stdout
        ballast = mounts.fill(here / "w")
        trial.hold(here, 11)
        run.wait_for(lambda: trial.is_held(here, 11))
        run.wait_for(lambda: saved_steps(here / "w") == [3, 6, 9])
        assert trial.lines(here / "w") == []
        ballast.unlink()
        trial.release(here)
        ended = run.finish(30)
        assert ended.returncode == 0, ended.output
        assert ended.stdout.count("metrics.jsonl cannot be written") == 1
        assert_same_run(here / "w", reference, without=lost)


@pytest.mark.parametrize("wrong", ["missing parent", "a file in its place"])
def test_a_workdir_that_cannot_be_is_refused_before_compiling(cli, here, wrong):
    place = here / "place"
    if wrong == "a file in its place":
        place.write_text("a file")
    ended = cli.run("--config=tiny.py", f"--workdir={place}/w")
    assert ended.returncode == 2, ended.output
    told = f"{place} is a file" if place.exists() else f"its parent {place} does not exist"
    assert f"The workdir {place}/w cannot be used: {told}." in ended.stderr
    assert "Traceback" not in ended.output
    assert ended.stdout == ""  # nothing of a model, let alone of its compilation


def test_a_read_only_workdir_is_refused_before_compiling_and_resumes_when_it_is_not(cli, here, reference):
    shutil.copytree(reference, here / "w")
    shutil.rmtree(here / "w/checkpoints/12")
    with mounts.read_only(here / "w"):
        before = status(here / "w")
        ended = cli.run(*COMMAND)
        assert ended.returncode == 2, ended.output
        assert f"The workdir {here}/w cannot be used: Read-only file system." in ended.stderr
        assert ended.stdout == ""
        assert status(here / "w") == before
    assert cli.run(*COMMAND).returncode == 0
    assert_same_run(here / "w", reference)
