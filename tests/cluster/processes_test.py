import json
import signal

import numpy as np
import pytest

from tests.cluster import group
from tests.faults import trial


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Two processes that nothing happens to: (lines, state)."""
    from tests.runner import Runner

    directory = tmp_path_factory.mktemp("undisturbed")
    group.set_up(directory)
    with Runner(directory) as cli:
        ends = group.start(cli).finish()
    assert [end.returncode for end in ends] == [0, 0], "\n".join(end.output for end in ends)
    return trial.lines(directory / "w"), trial.state(directory / "w", 12)


def assert_same(directory, undisturbed):
    lines, state = undisturbed
    assert trial.lines(directory / "w") == lines
    found = trial.state(directory / "w", 12)
    assert found.keys() == state.keys()
    for name, leaf in state.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def finish_again(cli, tmp_path, undisturbed):
    ends = group.start(cli).finish()
    assert [end.returncode for end in ends] == [0, 0], "\n".join(end.output for end in ends)
    assert_same(tmp_path, undisturbed)


def held_at(tmp_path, step):
    (tmp_path / "hold").write_text(str(step))
    return lambda: (tmp_path / "held").exists()


def test_two_processes_compute_what_one_with_two_devices_does(undisturbed, cli, tmp_path):
    end = cli.run(*group.COMMAND, num_devices=2)
    assert end.returncode == 0, end.output
    for ours, theirs in zip(undisturbed[0], trial.lines(tmp_path / "w"), strict=True):
        assert (ours["step"], ours["split"], ours.get("examples_seen")) == (
            theirs["step"],
            theirs["split"],
            theirs.get("examples_seen"),
        )
        assert abs(float(ours["loss"]) - float(theirs["loss"])) < 1e-5


def test_each_process_has_a_status_and_a_log_and_only_the_first_writes_the_rest(cli, tmp_path):
    ends = group.start(cli).finish()
    assert [end.returncode for end in ends] == [0, 0]
    statuses = [json.loads((tmp_path / "w" / "status" / f"{number}.json").read_text()) for number in (0, 1)]
    assert [(status["state"], status["step"]) for status in statuses] == [("finished", 12)] * 2
    assert statuses[0]["pid"] != statuses[1]["pid"]
    assert len(json.loads((tmp_path / "w" / "manifest.json").read_text())) == 1
    assert {path.name for path in (tmp_path / "w" / "logs").iterdir()} == {"process-0.log", "process-1.log"}
    assert len(list((tmp_path / "w" / "tensorboard").iterdir())) == 1
    assert "process 0 of 2, coordinator 127.0.0.1" in ends[0].stdout
    assert "step 12/12" not in ends[1].stdout
    again = group.start(cli).finish()
    assert [end.returncode for end in again] == [0, 0]
    assert "nothing to do" in again[0].stdout


@pytest.mark.parametrize(("number", "signum"), [(0, signal.SIGUSR1), (1, signal.SIGTERM)])
def test_a_signal_to_one_process_stops_all_after_the_same_step(number, signum, cli, tmp_path, undisturbed):
    held = held_at(tmp_path, 5)
    launch = group.start(cli)
    launch.runs[0].wait_for(held)
    launch.runs[number].send(signum)
    launch.runs[number].wait_for_output("stopping after this step")
    (tmp_path / "hold").unlink()
    ends = launch.finish()
    assert [end.returncode for end in ends] == [75, 75], launch.output
    status = trial.status(tmp_path / "w")
    assert status["state"] == "preempted"
    assert f"in process {number}" in status["reason"]
    assert status["step"] in trial.saved_steps(tmp_path / "w")
    finish_again(cli, tmp_path, undisturbed)


@pytest.mark.parametrize("number", [0, 1])
def test_when_one_is_killed_the_other_ends_with_the_cause_and_the_run_resumes(number, cli, tmp_path, undisturbed):
    held = held_at(tmp_path, 7)
    launch = group.start(cli)
    launch.runs[0].wait_for(held)
    launch.runs[number].kill()
    (tmp_path / "hold").unlink()
    end = launch.runs[1 - number].finish(30)
    assert end.returncode in ((75,) if number else (75, -signal.SIGABRT)), end.output
    log = (tmp_path / "w" / "logs" / f"process-{1 - number}.log").read_text()
    assert f"process {number}" in log
    assert "is lost" in log
    finish_again(cli, tmp_path, undisturbed)


@pytest.mark.parametrize("number", [0, 1])
def test_when_one_raises_it_ends_with_1_and_the_other_with_75(number, cli, tmp_path):
    (tmp_path / f"raise-{number}").write_text("4")
    launch = group.start(cli)
    ends = launch.finish(60)
    assert ends[number].returncode == 1, launch.output
    assert "out of coffee" in ends[number].output
    assert ends[1 - number].returncode == 75, launch.output
    assert "out of coffee" in (tmp_path / "w" / "logs" / f"process-{1 - number}.log").read_text()


def test_processes_with_other_configs_are_refused_with_the_keys(cli):
    ends = group.start(cli, more={1: ("--config.seed=7", "--config.optimizer.b1=0.8")}).finish(30)
    assert [end.returncode for end in ends] == [2, 2], ends[0].output
    for end in ends:
        assert "config.seed: 0 in process 0, 7 in process 1" in end.output
        assert "config.optimizer.b1" in end.output
        assert "Traceback" not in end.output


def test_a_process_that_does_not_come_is_named(cli):
    flags = (*group.COMMAND, "--config.distributed.init_timeout_secs=3")
    ends = group.start(cli, *flags, num_processes=3, only=(0, 2)).finish(60)
    assert [end.returncode for end in ends] == [75, 75], ends[0].output
    for end in ends:
        assert "2 of 3 processes came" in end.output
        assert "Missing: process 1" in end.output


def test_a_coordinator_that_is_not_there_is_told_with_its_address(cli):
    flags = (*group.COMMAND, "--config.distributed.init_timeout_secs=2")
    (end,) = group.start(cli, *flags, only=(1,), port=(port := group.free_port())).finish(60)
    assert end.returncode == 75, end.output
    assert f"127.0.0.1:{port}" in end.output


@pytest.mark.parametrize("number", [0, 1])
def test_two_processes_of_one_number_are_refused(number, cli):
    ids = {2: {"JAXTRAIN_PROCESS_ID": str(number)}}
    launch = group.start(cli, num_processes=3, only=(0, 1, 2) if number else (0, 2), env=ids)
    ends = launch.finish(40)
    assert [end.returncode for end in ends] == [2] * len(ends), launch.output
    assert f"two processes were started as process {number}" in launch.output
    assert "Traceback" not in launch.output


def test_a_workdir_that_is_not_shared_is_refused(cli, tmp_path):
    """The second process runs where the same path leads to another directory."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    group.set_up(elsewhere)
    ends = group.start(cli, cwd={1: elsewhere}).finish(60)
    assert [end.returncode for end in ends] == [2, 2], ends[0].output
    for end in ends:
        assert "is not that of process 1" in end.output
        assert "all nodes share" in end.output


def test_unequal_numbers_of_examples_are_told_before_training(cli, tmp_path):
    np.savez(tmp_path / "fewer.npz", image=np.zeros((40, 5), "float32"), label=np.zeros(40, "int32"))
    ends = group.start(cli, more={1: ("--config.data.path=fewer.npz",)}).finish(60)
    assert [end.returncode for end in ends] == [2, 2]
    assert "data.path" in ends[0].output


SCRIPT = """
import jax
import tiny
from jaxtrain import train

config = tiny.get_config()
first = train(config, "w")
assert (first.status, first.step, jax.process_count()) == ("finished", 12, 2)
assert train(config, "w").state is None
config.duration = "14 steps"
assert train(config, "w").step == 14
assert [line["step"] for line in first.history if line["split"] == "train"] == [4, 8, 12]
"""


def test_a_script_may_train_several_times_in_its_processes(cli, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = group.start(cli, "script.py", command=())
    ends = launch.finish()
    assert [end.returncode for end in ends] == [0, 0], launch.output
