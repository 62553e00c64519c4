import dataclasses
import json
import subprocess

import pytest

from jaxtrain import resume
from jaxtrain.config import to_dict
from jaxtrain.errors import WorkdirError
from jaxtrain.pace import Pace
from jaxtrain.workdir import Workdir
from tests.classifier import checked_config, make_config, on_one_device, rows


@pytest.fixture(scope="module")
def experiment():
    config = make_config()
    config.evals.test = {"data": {"type": rows(40, seed=1)}}
    config.evals.validation = {}
    return on_one_device(config)


@pytest.fixture(scope="module")
def launch(experiment):
    return resume.describe_launch(experiment)


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / "w")


def begun(workdir, experiment, launch):
    """A launch is written down in the workdir."""
    workdir.write_config(to_dict(experiment.config))
    workdir.append_manifest(launch)


def lines(workdir, *splits_and_steps):
    text = (json.dumps({"step": step, "time": 0.0, "split": split}) for split, step in splits_and_steps)
    workdir.metrics_path.write_text("".join(f"{line}\n" for line in text))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "jaxtrain.resume"]


def test_a_run_begins_at_the_beginning_or_where_its_checkpoint_says():
    assert resume.start_from({}) == resume.Start(step=0, position=0, secs=0.0, num_bad=0)
    start = resume.Start(step=6, position=60, secs=1.5, num_bad=2)
    found = resume.start_from(json.loads(json.dumps(dataclasses.asdict(start))))
    assert dataclasses.replace(found, unwritten=tuple(found.unwritten)) == start


def test_lines_that_a_full_disk_kept_are_named_unless_they_came_through(caplog):
    start = resume.Start(step=6, unwritten=(("train", 4), ("validation", 5)))
    resume.tell_lost_lines(start, lambda split, step: split == "train")
    assert [message.partition(": ")[2] for message in warnings(caplog)] == ["validation 5"]
    caplog.clear()
    resume.tell_lost_lines(start, lambda split, step: True)
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("pace", "present", "complete"),
    [
        (Pace(12, None, step=12), [("train", 12), ("test", 12), ("validation", 12)], True),
        (Pace(12, None, step=12), [("train", 12), ("validation", 12)], False),  # the last evaluation is missing
        (Pace(12, None, step=12), [("test", 6), ("validation", 6)], False),
        (Pace(12, None, step=9), [("test", 9), ("validation", 9)], False),
        (Pace(12, None, step=0), [], False),
        (Pace(None, 60.0, step=9, secs=61.0), [("test", 9), ("validation", 9)], True),
        (Pace(None, 60.0, step=9, secs=59.0), [("test", 9), ("validation", 9)], False),
    ],
)
def test_a_run_is_complete_when_it_is_over_and_evaluated(workdir, experiment, pace, present, complete):
    lines(workdir, *present)
    assert resume.is_complete(workdir, experiment.config, pace, experiment.evaluations) == complete


@pytest.mark.parametrize(
    ("state", "step", "duration", "complete"),
    [
        ("finished", 9, "12 steps", True),
        ("preempted", 9, "12 steps", False),
        ("finished", 6, "12 steps", False),
        ("finished", 9, "20 steps", False),  # asked for more since
    ],
)
def test_a_run_that_a_callback_ended_is_complete_until_more_is_asked_for(
    workdir, experiment, launch, state, step, duration, complete
):
    begun(workdir, experiment, launch)
    workdir.write_status(state, step)
    lines(workdir, ("test", 9), ("validation", 9))
    config = dataclasses.replace(experiment.config, duration=duration)
    assert resume.is_complete(workdir, config, Pace(12, None, step=9), experiment.evaluations) == complete


def test_a_new_workdir_has_nothing_to_drift_from(workdir, experiment, launch, caplog):
    resume.refuse_drift(workdir, experiment.config, launch, allow=False)
    begun(workdir, experiment, launch)
    resume.refuse_drift(workdir, experiment.config, launch, allow=False)
    assert warnings(caplog) == []


def test_another_run_is_refused_with_all_that_differs_and_a_free_workdir(workdir, experiment, launch, caplog):
    begun(workdir, experiment, launch)
    workdir.path.with_name("w-2").mkdir()
    config = dataclasses.replace(experiment.config, seed=3, batch_size=16)
    with pytest.raises(WorkdirError) as raised:
        resume.refuse_drift(workdir, config, launch, allow=False)
    text = str(raised.value)
    assert "  seed: 0 -> 3\n" in text
    assert "  batch_size: 8 -> 16\n" in text
    assert f"--workdir={workdir.path}-3," in text
    assert raised.value.exit_code == 2
    resume.refuse_drift(workdir, config, launch, allow=True)
    assert warnings(caplog) == ["allowed to differ from the run so far: seed: 0 -> 3; batch_size: 8 -> 16"]


def test_a_default_that_is_written_down_is_the_same_run(workdir, experiment, launch, caplog):
    begun(workdir, experiment, launch)

    def with_b1(value):
        optimizer = experiment.config.optimizer
        return dataclasses.replace(
            experiment.config, optimizer=dataclasses.replace(optimizer, options={**optimizer.options, "b1": value})
        )

    resume.refuse_drift(workdir, with_b1(0.9), launch, allow=False)
    assert warnings(caplog) == []
    with pytest.raises(WorkdirError, match=r"optimizer.b1: 0.9 -> 0.8"):
        resume.refuse_drift(workdir, with_b1(0.8), launch, allow=False)


def test_another_length_is_a_notice_and_another_log_is_nothing(workdir, experiment, launch, caplog):
    begun(workdir, experiment, launch)
    free = checked_config(log={"every": "1 step"}, checkpoint={"every": "2 steps"}).log
    config = dataclasses.replace(experiment.config, duration="20 steps", log=free)
    resume.refuse_drift(workdir, config, launch, allow=False)
    assert warnings(caplog) == ["changed since the last launch: duration: 12 steps -> 20 steps"]


def test_other_versions_and_another_commit_are_notices_that_name_both(workdir, experiment, launch, caplog):
    old = {**launch, "versions": {**launch["versions"], "jax": "0.0.1"}, "git": {"commit": "abc", "dirty": False}}
    begun(workdir, experiment, old)
    new = {**launch, "git": {"commit": "def", "dirty": True}}
    resume.refuse_drift(workdir, experiment.config, new, allow=False)
    assert warnings(caplog) == [
        f"changed since the last launch: jax 0.0.1 -> {launch['versions']['jax']}",
        "changed since the last launch: git {'commit': 'abc', 'dirty': False} -> {'commit': 'def', 'dirty': True}",
    ]


def test_only_the_newest_launch_counts(workdir, experiment, launch, caplog):
    begun(workdir, experiment, {**launch, "git": {"commit": "abc", "dirty": False}})
    workdir.append_manifest(launch)
    resume.refuse_drift(workdir, experiment.config, launch, allow=False)
    assert warnings(caplog) == []


def test_changed_data_is_refused_and_evals_come_and_go(workdir, experiment, launch):
    begun(workdir, experiment, launch)
    data = launch["data"]
    coming = {key: data[key] for key in ("data", "evals.test.data")} | {"evals.new.data": {"num_examples": 1}}
    resume.refuse_drift(workdir, experiment.config, {**launch, "data": coming}, allow=False)
    changed = {**data, "evals.test.data": {**data["evals.test.data"], "fingerprint": "another"}}
    with pytest.raises(WorkdirError, match=r"the content of --config\.evals\.test\.data(.|\n)*another"):
        resume.refuse_drift(workdir, experiment.config, {**launch, "data": changed}, allow=False)


def test_the_record_of_a_launch_names_what_numbers_depend_on(experiment, launch):
    assert launch.keys() == {
        *("time", "user", "argv", "git", "versions", "devices", "num_processes", "mesh", "data", "seed")
    }
    assert launch["versions"].keys() >= {"python", "jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy"}
    assert launch["mesh"] == {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}
    assert launch["devices"]["count"] == 1
    assert launch["data"]["data"] == {"num_examples": 52, "fingerprint": experiment.source.fingerprint()}
    assert launch["data"]["data"] == launch["data"]["evals.validation.data"] != launch["data"]["evals.test.data"]
    json.dumps(launch)


def test_the_commit_is_that_of_the_current_directory(tmp_path, monkeypatch, experiment):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert resume.describe_launch(experiment)["git"] == {"commit": None, "dirty": None}
    git = ("git", "-c", "user.name=n", "-c", "user.email=e")
    (tmp_path / "file").write_text("1")
    for command in (("init", "-q"), ("add", "file"), ("commit", "-qm", "m")):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert resume.describe_launch(experiment)["git"] == {"commit": head, "dirty": False}
    (tmp_path / "file").write_text("2")
    assert resume.describe_launch(experiment)["git"] == {"commit": head, "dirty": True}
