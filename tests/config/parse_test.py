import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_collections import config_dict

from jaxtrain.config import Config, Draft, EvalData, Spec, Text, default_config, flatten, from_dict, parse, to_dict
from jaxtrain.config.overrides import apply
from jaxtrain.errors import ConfigError

RIGHT = {"duration": "10 steps", "task": {"type": "a.b:C"}, "data": {"type": "a.b:D", "seq": 8, "split": "train"}}


def problems(overrides=(), **keys):
    return {problem.key: problem for problem in parse(apply({**RIGHT, **keys}, overrides)).problems}


def test_every_problem_is_told_in_one_go_with_what_is_allowed_and_the_nearest_right_value():
    flags = ["batch_sze=8", "duration=-5 steps", "optimizer.learning_rate=nan", "optimzer.b1=1"]
    with pytest.raises(ConfigError) as error:
        parse(apply(RIGHT, flags)).checked()
    lines = str(error.value).splitlines()
    assert lines[0] == "The config has 4 problems:"
    for start, allowed, fix in [
        ("--config.batch_sze=8:", "batch_size, init_from", "Use --config.batch_size=8."),
        ("--config.duration=-5 steps:", '"3 epochs"', "Use --config.duration='5 steps'."),
        (
            "--config.optimizer.learning_rate=nan:",
            "finite and 0 or more",
            "Use --config.optimizer.learning_rate=0.001.",
        ),
        ("--config.optimzer=", "optimizer", "optimizer"),
    ]:
        line = next(line.strip() for line in lines if line.strip().startswith(start))
        assert allowed in line
        assert fix in line


@pytest.mark.parametrize(
    ("flag", "right"),
    [
        ("learning_rate=1", "--config.optimizer.learning_rate=1"),  # the right name in the wrong group
        ("lerning_rate=1", "--config.optimizer.learning_rate=1"),
        ("log.evry=5 steps", "--config.log.every='5 steps'"),
        ("batch_size=2.5", "--config.batch_size=2"),
        ("batch_size=0", "--config.batch_size=1"),
        ("seed=-1", "--config.seed=0"),
        ("seed=4294967296", "--config.seed=4294967295"),
        ("deterministic=yes", "--config.deterministic=true"),
        ("precision.compute=bf16", "--config.precision.compute=bfloat16"),
        ("checkpoint.keep_last=0", "--config.checkpoint.keep_last=1"),
        ("schedule.warmup=2 hours", "--config.schedule.warmup='1000 steps'"),
        ("optimizer=optax:sgd", "--config.optimizer.type=optax:sgd"),
        ("optimizer.type=sgd", "--config.optimizer.type=optax:sgd"),
        ("mesh.data=0", "--config.mesh.data=1"),
        ("evals.Test.every=5 steps", "--config.evals.test"),
        ("evals.train.every=5 steps", "--config.evals.train_set"),
        ("clip_norm=inf", "--config.clip_norm=0.0"),
        ("accumulation.engine=Fused", "--config.accumulation.engine=fused"),
    ],
)
def test_each_message_names_the_nearest_right_flag(flag, right):
    (problem,) = problems([flag]).values()
    assert right in problem.fix


def test_two_axes_for_the_rest_are_refused():
    assert "only one axis" in problems(["mesh.fsdp=-1"])["mesh.fsdp"].allowed
    assert "only one axis" in problems(["mesh.data=1", "mesh.fsdp=-1", "mesh.tensor=-1"])["mesh.tensor"].allowed


def test_a_value_is_no_group_and_a_group_no_value():
    assert "has no keys" in problems(["seed.x=1"])["seed.x"].allowed
    assert "has no keys" in problems(seed={"x": 1})["seed.x"].allowed
    assert "has no keys" in problems(seed={})["seed"].allowed
    assert "is a group with the keys every, tensorboard" in problems(["log=5"])["log"].allowed
    assert "named entries" in problems(["evals=5"])["evals"].allowed


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"duration": -5}, "duration"),
        ({"optimizer": {"learning_rate": float("nan")}}, "optimizer.learning_rate"),
        ({"optimizer": {"learning_rate": True}}, "optimizer.learning_rate"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": 8.0}, "batch_size"),
        ({"seed": None}, "seed"),
        ({"evals": {"a": {"evry": "5 steps"}}}, "evals.a.evry"),  # a group assigned whole is not locked inside
        ({"log": {"every": "5 steps", "tensorbord": False}}, "log.tensorbord"),
    ],
)
def test_what_ml_collections_lets_pass_is_refused(keys, wrong):
    assert list(problems(**keys)) == [wrong]


def test_numbers_of_other_libraries_are_numbers():
    config = parse({**RIGHT, "batch_size": np.int64(8), "clip_norm": np.float32(0.5), "preemption": {"grace_secs": 5}})
    assert to_dict(config.checked())["clip_norm"] == 0.5
    assert config.config.preemption.grace_secs == 5.0
    json.dumps(to_dict(config.config))


def test_a_wrong_value_is_replaced_so_that_checking_can_go_on():
    parsed = parse(apply(RIGHT, ["duration=-5 steps", "batch_size=0", "clip_norm=nan", "optimizer.type=sgd"]))
    assert parsed.config.duration == "5 steps"
    assert parsed.config.batch_size == 1
    assert parsed.config.clip_norm == 0.0
    assert parsed.config.optimizer.type == ""  # no target is better than a guess at one


def test_an_eval_takes_over_data_and_its_options_but_no_transforms():
    data = {**RIGHT["data"], "transforms": {"crop": {"type": "a.b:T"}}}
    flags = ["evals.test.data.split=test", "evals.other.data.type=a.b:E", "evals.other.data.x=1"]
    config = parse(apply({**RIGHT, "data": data}, flags)).checked()
    assert config.evals["test"].data == EvalData("a.b:D", {"seq": 8, "split": "test"})
    assert config.evals["other"].data == EvalData("a.b:E", {"x": "1"})


def test_specs_inside_options_are_read_wherever_they_stand():
    task = {"type": "a.b:C", "model": {"type": "a.b:M"}, "heads": [{"type": "a.b:H", "n": 1}], "plain": {"x": 1}}
    options = parse({**RIGHT, "task": task}).checked().task.options
    assert options == {"model": Spec("a.b:M"), "heads": (Spec("a.b:H", {"n": 1}),), "plain": {"x": 1}}


def test_options_of_flags_stay_texts_until_their_signature_is_known():
    config = parse(apply(RIGHT, ["task.model.type=a.b:M", "task.model.layers=4"])).checked()
    assert type(config.task.options["model"].options["layers"]) is Text


def test_objects_of_python_may_stand_for_specs():
    class Model:
        pass

    model = Model()
    config = default_config()
    config.duration, config.data.type = "1 step", "a.b:D"
    config.task.type, config.task.model = "a.b:C", model
    assert parse(config).checked().task.options["model"] is model
    assert parse({**RIGHT, "task": model}).checked().task == Spec(model)


def test_each_value_knows_where_it_comes_from():
    config = default_config()
    config.duration, config.task.type, config.data.type, config.data.seq = "1 step", "a:b", "a:b", 8
    config.evals.test = {"every": "5 steps"}
    origins = parse(apply(config, ["seed=1", "evals.test.data.split=test"])).origins
    assert {key: origins[key] for key in ("seed", "duration", "log.every", "data.seq", "evals.test.every")} == {
        "seed": "flag",
        "duration": "file",
        "log.every": "default",
        "data.seq": "file",
        "evals.test.every": "file",
    }
    assert origins["evals.test.data.seq"] == "data"
    assert origins["evals.test.data.split"] == "flag"
    assert set(origins) == {
        key for key, _ in flatten(to_dict(parse(apply(config, ["evals.test.data.split=test"])).config))
    }


def test_a_secret_is_in_no_message_and_not_in_the_config():
    secret = "sentinel-7781-q"
    parsed = parse(apply(RIGHT, [f"log.api_key={secret}", f"seed.password={secret}", f"task.hf_token={secret}"]))
    assert len(parsed.problems) >= 3
    assert secret not in f"{parsed.problems} {parsed.config} {ConfigError(parsed.problems)}"


@pytest.mark.parametrize("source", [3, None, "x", [], {1: 2}])
def test_what_is_no_mapping_is_refused(source):
    with pytest.raises(ConfigError):
        parse(source).checked()


KEYS = sorted({part for key, _ in flatten(to_dict(Config())) for part in key.split(".")} | {"validation", "model"})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.builds(Text, st.text(max_size=8)),
    st.sampled_from(["5 steps", "optax:sgd", "env:X", "https://a:b@c/?token=d", 10**30, object(), b"x", {1}, 1j, int]),
    st.builds(lambda: 10**5000),
)
NAMES = st.sampled_from(KEYS) | st.text(max_size=6) | st.integers()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES, inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=4).map(config_dict.ConfigDict)
        | st.builds(lambda value: config_dict.FieldReference(value, field_type=object), inner)
    ),
    max_leaves=12,
)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(st.dictionaries(st.sampled_from(list(to_dict(Config()))) | NAMES, VALUES, max_size=6))
def test_no_malformed_config_raises_anything_but_a_config_error(values):
    parsed = parse(values)
    if parsed.problems:
        assert all(line.isprintable() for line in str(ConfigError(parsed.problems)).splitlines())


@QUICK
@given(VALUES)
def test_whatever_a_file_returns_is_a_config_or_refused(value):
    parse(Draft(value))


@QUICK
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(KEYS) | st.text(max_size=5), max_size=4), st.text(max_size=12)), max_size=6
    )
)
def test_no_malformed_flag_raises_anything_but_a_config_error(flags):
    parsed = parse(apply(RIGHT, [f"{'.'.join(path)}={text}" for path, text in flags]))
    assert all(str(problem).isprintable() for problem in parsed.problems)
    json.dumps(to_dict(parsed.config))


BOUNDS = {
    "seed": [0, 2**32 - 1],
    "batch_size": [1, 2**63 - 1],
    "duration": ["1 step", "1e18 steps"],
    "clip_norm": [0.0, 1e300],
    "compile_cache": ["", "auto", "/x"],
    "deterministic": [True, False],
    "accumulation": [{"microbatches": 1}, {"engine": "fused"}, {"reduce": "once", "gather": "once"}],
    "mesh": [{"data": 1}, {"fsdp": -1, "data": 1}],
    "checkpoint": [{"every": ""}, {"keep_every": "5 epochs"}],
    "log": [{"every": "", "tensorboard": False}],
    "nonfinite": [{"policy": "skip", "limit": 1}],
    "evals": [{}, {"a": {}, "b_2": {"data": {"split": "x"}, "every": "1 hour", "num_batches": 1}}],
}


@QUICK
@given(st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in BOUNDS.items()}))
def test_right_configs_are_accepted_and_survive_being_stored(values):
    config = parse({**RIGHT, **values}).checked()
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
