import pytest

from jaxtrain.config import parse

BASE = {"duration": "10 steps", "task": {"type": "a:B"}, "data": {"type": "c:D"}}


@pytest.mark.parametrize(
    ("group", "key", "value", "nearest"),
    [
        ("checkpoint", "keep_last", 0, "1"),
        ("checkpoint", "keep_every", "2 hours", "steps"),
        ("checkpoint", "best_metric", "loss", "validation/loss"),
        ("log", "every", "10 stesp", "10 steps"),
        ("profile", "steps", "10:9", "10:11"),
        ("preemption", "grace_secs", -1.0, "0"),
        ("distributed", "coordinator", "http://node0/x", "node0:8476"),
        ("distributed", "coordinator", "node0:99999", "node0:8476"),
        ("distributed", "heartbeat_timeout_secs", 0.0, "1"),
        ("distributed", "mode", "auot", "auto"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_a_right_one(group, key, value, nearest):
    (problem,) = parse({**BASE, group: {key: value}}).problems
    assert problem.key == f"{group}.{key}"
    assert nearest in str(problem)


def test_what_is_right_is_taken():
    config = parse({**BASE, "checkpoint": {"keep_last": 3}, "preemption": {"grace_secs": 5.0}}).config
    assert (config.checkpoint.keep_last, config.preemption.grace_secs) == (3, 5.0)
