import json

import pytest

from jaxtrain.config import Config, to_dict
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.programs import Reply
from tests.doctor import recordings


def test_a_limit_holds_for_every_wait():
    assert Machine().at_most(60.0) == 60.0
    assert Machine(max_secs=5.0).at_most(60.0) == 5.0
    assert Machine(max_secs=500.0).at_most(60.0) == 60.0


def test_a_config_is_given_or_in_the_workdir(tmp_path):
    assert not Machine().has_config
    assert not Machine(["--config.seed=1"], tmp_path).has_config
    assert Machine(["--config=c.py"]).has_config
    (tmp_path / "config.json").write_text(json.dumps(to_dict(Config())))
    assert Machine([], tmp_path).has_config


def test_the_workdir_is_the_given_one_or_that_of_the_name(tmp_path):
    assert Machine([], tmp_path).workdir == tmp_path
    assert Machine().workdir is None
    named = Machine(["--config=c.py"])
    named.settings = Reply({"settings": {"name": "c"}})
    assert str(named.workdir) == "runs/c"
    unreadable = Machine(["--config=c.py"])
    unreadable.settings = Reply({}, "broken")
    assert unreadable.workdir is None
    assert unreadable.setting("compile_cache", "auto") == "auto"


def test_the_programs_of_the_driver_are_asked_once(tmp_path):
    machine = Machine(environ={"PATH": recordings.install(tmp_path / "bin", recordings.A100)})
    assert machine.has_driver
    assert (len(machine.gpus), machine.smi.returncode) == (8, 0)
    assert "NV12" in machine.topology.stdout
    (tmp_path / "bin/nvidia-smi").unlink()
    assert len(machine.gpus) == 8
    assert not Machine(environ={"PATH": str(tmp_path)}).has_driver


def test_a_memory_that_is_taken_as_needed_is_what_a_probe_gets(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("jaxtrain.doctor.programs.probe", lambda *given: seen.append(given) or Reply({}))
    assert Machine(environ={"A": "b"}, max_secs=7.0).jax == Reply({})
    assert seen == [(["devices"], 7.0, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "A": "b"})]


@pytest.mark.parametrize("num", [1, 4])
def test_the_experiment_is_made_for_all_processes(tmp_path, monkeypatch, num):
    seen = []
    monkeypatch.setattr("jaxtrain.doctor.programs.probe", lambda arguments, *given: seen.append(arguments) or Reply({}))
    machine = Machine(["--config=c.py"], tmp_path)
    machine.cluster = {"num_processes": num}
    assert machine.experiment == Reply({})
    assert seen == [["experiment", f"--num_processes={num}", f"--workdir={tmp_path}", "--config=c.py"]]
