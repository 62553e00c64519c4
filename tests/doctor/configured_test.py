import pytest

from jaxtrain.doctor import configured
from jaxtrain.doctor.machine import Machine
from jaxtrain.doctor.programs import Reply

SETTINGS = {"name": "a", "problems": "", "secrets": [["STORE_TOKEN", "data.token"]]}
STATE = {"num_bytes": 12_000_000, "num_checkpoints": 3, "num_steps": 1000}


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (Reply({"settings": SETTINGS}), "ok", "a: every key"),
        (Reply({"settings": {**SETTINGS, "problems": "--config.seed=x: no"}}), "fail", "--config.seed=x: no"),
        (Reply({}, "c.py is no file", "ConfigError"), "fail", "c.py is no file"),
        (Reply({}, "no end within 60 s"), "fail", "no end"),
    ],
)
def test_a_config_is_read_or_not(reply, status, words):
    found = configured.judge_config(reply)
    assert (found.status, words in found.found) == (status, True)


def test_each_missing_secret_is_named_with_its_key():
    secrets = [["A_TOKEN", "data.token"], ["A_TOKEN", "evals.x.data.token"], ["B_TOKEN", "log.trackers.w.key"]]
    found = configured.judge_secrets(secrets, {"A_TOKEN": "", "B_TOKEN": "x"})
    assert found.status == "fail"
    assert found.found == "not set or empty: A_TOKEN (--config.data.token), A_TOKEN (--config.evals.x.data.token)"
    assert found.advice == "export A_TOKEN=..."
    found = configured.judge_secrets(secrets, {"A_TOKEN": "sesame", "B_TOKEN": "open"})
    assert (found.status, found.found) == ("ok", "A_TOKEN, B_TOKEN set")
    assert configured.judge_secrets([], {}).status == "ok"


@pytest.mark.parametrize(
    ("reply", "status", "data_status", "words"),
    [
        (Reply({"state": STATE, "read data": {"num_examples": 50}}), "ok", "ok", "data: 50 examples"),
        (Reply({}, "--config.batch_size=7: not divisible", "ConfigError"), "fail", "n/a", "not divisible"),
        (Reply({}, "rows.npz: no such file", "DataError"), "n/a", "fail", "rows.npz: no such file"),
        (Reply({"state": STATE}, "example 49 cannot be read", "ExampleError"), "ok", "fail", "example 49"),
        (Reply({}, "no end within 300 s"), "fail", "fail", "no end"),
    ],
)
def test_config_and_data_each_tell_their_own_problem(reply, status, data_status, words):
    found, data = configured.judge_experiment(reply), configured.judge_data(reply)
    assert (found.status, data.status) == (status, data_status)
    assert words in found.found + data.found


def machine(settings=SETTINGS, devices=True, token="sesame"):
    made = Machine(["--config=c.py"], environ={"STORE_TOKEN": token})
    made.settings = Reply({"settings": settings} if settings else {}, "" if settings else "broken")
    made.jax = Reply({"devices": {}} if devices else {})
    made.experiment = Reply({"state": STATE, "read data": {"num_examples": 50}})
    return made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": None}, "the config cannot be read"),
        ({"settings": {**SETTINGS, "problems": "some"}}, "the config cannot be read"),
        ({"devices": False}, "needs JAX"),
        ({"token": ""}, "a secret is missing"),
    ],
)
def test_the_second_stage_waits_for_what_it_needs(changes, words):
    made = machine(**changes)
    for check in (configured.check_experiment, configured.check_data):
        assert (check(made).status, words in check(made).found) == ("n/a", True)
    assert configured.state(made)["num_bytes"] == 0


def test_with_all_it_needs_it_is_made():
    assert configured.check_experiment(machine()).found == "1,000 steps, a state of 12.0 MB"
    assert configured.check_data(machine()).status == "ok"
    assert configured.state(machine()) == STATE


def test_without_a_config_there_is_nothing_to_check():
    for check in ("check_config", "check_secrets", "check_experiment", "check_data"):
        assert getattr(configured, check)(Machine()).status == "n/a"
