import pytest

from jaxtrain.config import Config, flatten, parse, to_dict
from jaxtrain.config.drift import RULES, compare, severity

RIGHT = {
    "duration": "10 steps",
    "task": {"type": "a.b:C", "model": {"type": "a.b:M", "layers": 2}},
    "data": {"type": "a.b:D", "transforms": {"crop": {"type": "a.b:T"}, "flip": {"type": "a.b:T"}}},
    "evals": {"test": {"data": {"split": "x"}}},
    "callbacks": {"c": {"type": "a.b:K"}},
}


def changes(old, **keys):
    found = compare(to_dict(parse(old).checked()), to_dict(parse({**old, **keys}).checked()))
    return {change.key: change.severity for change in found}


def test_every_key_of_the_schema_is_judged_by_a_rule():
    keys = [key for key, _ in flatten(to_dict(parse(RIGHT).config))] + [key for key, _ in flatten(to_dict(Config()))]
    prefixes = {key: [rule for rule in RULES if key == rule or key.startswith(f"{rule}.")] for key in keys}
    assert [key for key, rules in prefixes.items() if not rules] == []


def test_every_rule_judges_a_key_of_the_schema():
    keys = [key for key, _ in flatten(to_dict(Config()))]
    assert [rule for rule in RULES if not any(key == rule or key.startswith(f"{rule}.") for key in keys)] == []


def test_equal_configs_have_not_drifted():
    assert changes(RIGHT) == {}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"seed": 1}, {"seed": "refused"}),
        ({"batch_size": 64}, {"batch_size": "refused"}),
        ({"task": {"type": "a.b:C", "model": {"type": "a.b:M", "layers": 4}}}, {"task.model.layers": "refused"}),
        ({"optimizer": {"b1": 0.8}}, {"optimizer.b1": "refused"}),
        ({"optimizer": {"learning_rate": 0.1}}, {"optimizer.learning_rate": "notice"}),
        ({"duration": "20 steps"}, {"duration": "notice"}),
        ({"schedule": {"warmup": "5 steps"}}, {"schedule.warmup": "notice"}),
        ({"accumulation": {"engine": "fused"}}, {"accumulation.engine": "notice"}),
        ({"accumulation": {"reduce": "once"}}, {"accumulation.reduce": "notice"}),
        ({"accumulation": {"gather": "once"}}, {"accumulation.gather": "notice"}),
        ({"evals": {"test": {"every": "1 epoch", "data": {"split": "x"}}}}, {"evals.test.every": "notice"}),
        ({"ema": {"decay": 0.5}}, {"ema.decay": "refused"}),
        ({"log": {"every": "1 step"}, "name": "n"}, {"log.every": "free", "name": "free"}),
        ({"callbacks": {}}, {"callbacks.c.type": "free"}),
        ({"data": {**RIGHT["data"], "num_workers": 2}}, {"data.num_workers": "free"}),
    ],
)
def test_each_change_is_judged(keys, expected):
    assert changes(RIGHT, **keys) == expected


def test_another_order_of_transforms_is_a_change_of_the_data():
    transforms = dict(reversed(RIGHT["data"]["transforms"].items()))
    assert changes(RIGHT, data={**RIGHT["data"], "transforms": transforms}) == {"data.transforms": "refused"}


def test_numbers_of_another_type_are_a_change_and_nan_equals_itself():
    assert [change.key for change in compare({"task": {"x": 1}}, {"task": {"x": True}})] == ["task.x"]
    assert compare({"task": {"x": float("nan")}}, {"task": {"x": float("nan")}}) == []


def test_a_change_reads_as_a_difference():
    assert [str(change) for change in compare({"seed": 1}, {"seed": 2, "task": {"x": "a"}})] == [
        "seed: 1 -> 2",
        "task.x: (absent) -> a",
    ]


def test_a_key_nobody_thought_of_is_refused():
    assert severity("something.new") == "refused"


def test_another_order_of_parameter_groups_is_a_change_because_the_first_that_matches_counts():
    groups = {"a": {"match": "x"}, "b": {"match": "y"}}
    swapped = dict(reversed(groups.items()))
    assert changes({**RIGHT, "param_groups": groups}, param_groups=swapped) == {"param_groups": "refused"}
