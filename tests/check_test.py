import re

import pytest

from jaxtrain.check import check, checked
from jaxtrain.config import parse
from jaxtrain.errors import ConfigError
from tests.classifier import make_config


def problems(num_devices=8, **changes):
    config = parse(make_config(**changes)).checked()
    return {problem.key: problem for problem in check(config, num_devices, num_processes=1)[1]}


def test_a_config_that_fits_has_no_problem():
    assert problems(batch_size=24, accumulation={"microbatches": 3}, evals={"test": {"batch_size": 16}}) == {}


@pytest.mark.parametrize(
    ("num_devices", "changes", "key"),
    [
        (8, {"batch_size": 100}, "batch_size"),
        (8, {"batch_size": 5}, "batch_size"),
        (3, {"batch_size": 8}, "batch_size"),
        (8, {"batch_size": 16, "accumulation": {"microbatches": 4}}, "batch_size"),
        (8, {"batch_size": 100, "mesh": {"data": 4, "fsdp": 2}}, "batch_size"),
        (8, {"evals": {"test": {"batch_size": 12}}}, "evals.test.batch_size"),
    ],
)
def test_a_batch_that_does_not_divide_is_told_with_values_that_do(num_devices, changes, key):
    found = problems(num_devices, **changes)
    assert list(found) == [key]
    for value in re.findall(r"\d+", found[key].fix):
        fixed = {**changes, "batch_size": int(value)}
        if key != "batch_size":
            fixed = {**changes, "evals": {"test": {"batch_size": int(value)}}}
        assert problems(num_devices, **fixed) == {}


def test_the_message_is_the_one_a_person_needs():
    (problem,) = problems(batch_size=100, mesh={"data": 4, "fsdp": 2}).values()
    assert str(problem) == (
        "--config.batch_size=100: not divisible by the 8 devices of mesh axes (data=4, fsdp=2). Use 96 or 104."
    )


def test_an_eval_that_takes_the_batch_size_of_training_is_not_told_twice():
    assert list(problems(batch_size=100, evals={"test": {}})) == ["batch_size"]


def best(every="", saved="10 steps", metric="validation/loss", **checkpoint):
    checkpoint = {"keep_best": 1, "best_metric": metric, "every": saved, **checkpoint}
    return problems(evals={"validation": {"every": every}}, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("every", "saved"),
    [
        ("10 steps", "10 steps"),
        ("30 steps", "10 steps"),
        ("5 steps", "10 steps"),
        ("80 examples", "10 steps"),  # batches of 8
        ("2.5 epochs", "5 epochs"),
        ("30 minutes", "1 hour"),
    ],
)
def test_evaluations_at_checkpoints_can_tell_the_best(every, saved):
    assert best(every, saved) == {}


@pytest.mark.parametrize(
    ("every", "saved"),
    [
        ("", "10 steps"),
        ("10 steps", ""),
        ("15 steps", "10 steps"),
        ("1 epoch", "10 steps"),
        ("1 hour", "10 steps"),
        ("40 minutes", "1 hour"),
    ],
)
def test_evaluations_that_may_miss_the_checkpoints_cannot(every, saved):
    assert list(best(every, saved)) == ["evals.validation.every"]
    assert best(every, saved, keep_best=0, metric="") == {}


def test_the_best_needs_an_evaluation_that_there_is():
    (problem,) = best("10 steps", metric="validatoin/accuracy").values()
    assert str(problem) == (
        "--config.checkpoint.best_metric=validatoin/accuracy: there is no evaluation named validatoin. "
        "Use validation/accuracy."
    )
    assert best("10 steps", metric="")["checkpoint.best_metric"].fix == "Use validation/loss."
    assert list(problems(checkpoint={"keep_best": 1})) == ["checkpoint.best_metric"]
    assert list(problems(checkpoint={"best_metric": "test/loss"})) == ["checkpoint.best_metric"]


def test_a_mesh_that_is_not_the_devices_is_told():
    assert list(problems(mesh={"data": 3})) == ["mesh.data"]


def test_both_stages_tell_their_problems_together():
    config = {
        "seed": -1,
        "duration": "10 steps",
        "batch_size": 100,
        "task": {"type": "jaxtrain.tasks.classification:Classification", "modl": 3},
        "data": {"type": "jaxtrain.data.arrays:Arrays"},
    }
    with pytest.raises(ConfigError) as raised:
        checked(config)
    assert {problem.key for problem in raised.value.problems} >= {"seed", "batch_size", "task.modl"}


def test_a_good_config_comes_back_typed():
    assert checked(make_config()).batch_size == 8
