import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtrain.build import RUNTIME_NAMES, check_options, type_options
from jaxtrain.config import Config, Spec, Text, from_dict, parse, to_dict
from jaxtrain.config.overrides import apply

HERE = "tests.build.options_test"


@dataclasses.dataclass(frozen=True)
class Task:
    model: Any
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1, 2)
    splits: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    layers: int
    vocab_size: int
    dtype: Any = None


class Source:
    def __init__(self, seq: int, split: str = "train", seed: int = 0):
        pass


class Crop:
    def __init__(self, size: int):
        pass


class Note:
    def __init__(self, text: str, config: Config):
        pass


instance = object()

RIGHT = {
    "duration": "10 steps",
    "task": {"type": f"{HERE}:Task", "model": {"type": f"{HERE}:Model", "layers": 2}},
    "data": {"type": f"{HERE}:Source", "seq": 8},
    "evals": {"test": {"data": {"split": "test"}}},
}


def checked(*overrides, **keys):
    parsed = parse(apply({**RIGHT, **keys}, overrides))
    assert parsed.problems == ()
    return check_options(parsed.config)


def problems(*overrides, **keys):
    return {problem.key: problem for problem in checked(*overrides, **keys)[1]}


def test_texts_of_flags_become_what_the_signature_says():
    config, found = checked(
        *["task.rate=0.1", "task.model.layers=4", "task.kind=b", "task.sizes=3,4", "task.splits={'a': 1}"],
        *["task.model.dtype=bfloat16", "optimizer.b1=0.8", "optimizer.nesterov=true", "optimizer.mu_dtype=bfloat16"],
    )
    assert found == []
    options = dict(config.task.options)
    model = options.pop("model")
    assert options == {"rate": 0.1, "kind": "b", "sizes": (3, 4), "splits": {"a": 1.0}}
    assert model.options == {"layers": 4, "dtype": "bfloat16"}
    assert config.optimizer.options == {"b1": 0.8, "nesterov": True, "mu_dtype": "bfloat16"}
    assert not any(isinstance(value, Text) for value in [*options.values(), *model.options.values()])


def test_what_the_trainer_passes_is_not_missing():
    assert problems(callbacks={"note": {"type": f"{HERE}:Note", "text": "x"}}) == {}
    assert "vocab_size" in RUNTIME_NAMES["task"]


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("task.model.layer=4", "--config.task.model.layers=4"),
        ("task.rate=fast", "--config.task.rate=0.5"),
        ("task.kind=c", "--config.task.kind=a"),
        ("task.sizes=3", "--config.task.sizes=3,"),
        ("task.model.layers=2.0", "--config.task.model.layers=2"),
        ("data.seqq=9", "--config.data.seq=9"),
        ("data.shufle=false", "--config.data.shuffle=false"),  # a key of the schema, beside the options
        ("optimizer.b7=1", "--config.optimizer.b1=1 or --config.optimizer.b2=1"),
        ("optimizer.b1=nan", "--config.optimizer.b1=0.9"),
        ("optimizer.eps=inf", "--config.optimizer.eps=1e-08"),
        ("optimizer.b1=abc", "--config.optimizer.b1=0.9"),
        ("schedule.type=jaxtrain.schedules:linear", ""),
    ],
)
def test_a_wrong_option_is_told_with_the_nearest_right_one(override, fix):
    found = problems(override)
    assert len(found) == bool(fix)
    assert all(fix in problem.fix for problem in found.values())


def test_an_unknown_option_is_told_with_the_full_list():
    listed = problems("optimizer.zzz=1")["optimizer.zzz"].allowed
    assert all(name in listed for name in ("b1", "b2", "weight_decay", "learning_rate", "optax:adamw"))
    assert listed.count("learning_rate") == 1


def test_missing_options_are_told_with_their_type():
    found = problems(task={"type": f"{HERE}:Task", "model": {"type": f"{HERE}:Model"}})
    assert list(found) == ["task.model.layers"]
    assert "a whole number" in found["task.model.layers"].allowed
    assert list(problems(task={"type": f"{HERE}:Task"})) == ["task.model"]


def test_what_an_eval_takes_over_from_data_is_told_once():
    assert list(problems("data.sq=9")) == ["data.sq"]
    assert set(problems("data.sq=9", "evals.test.data.splt=x")) == {"data.sq", "evals.test.data.splt"}
    assert set(problems("data.sq=9", "evals.test.data.sq=8")) == {"data.sq", "evals.test.data.sq"}


def test_transforms_and_callbacks_are_checked():
    transforms = {"crop": {"type": f"{HERE}:Crop", "sze": 3}}
    found = problems(
        data={**RIGHT["data"], "transforms": transforms},
        evals={"test": {"data": {"transforms": transforms}}},
        callbacks={"note": {"type": f"{HERE}:Nota"}},
    )
    where = {"data.transforms.crop", "evals.test.data.transforms.crop"}
    assert set(found) == {f"{key}.{name}" for key in where for name in ("sze", "size")} | {"callbacks.note.type"}


def test_numbers_that_are_not_finite_are_left_to_targets_other_than_optimizers():
    assert problems("task.rate=inf") == {}


def test_a_config_whose_types_are_unknown_has_no_second_problem():
    assert check_options(Config(optimizer=dataclasses.replace(Config().optimizer, type="")))[1] == []


def test_objects_take_no_options():
    assert type_options(Spec(object(), {"x": 1}), "task")[1][0].key == "task.x"
    assert type_options(Spec(f"{HERE}:instance", {"x": 1}), "task")[1][0].key == "task.x"
    assert type_options(Spec(object()), "task")[1] == []


def test_a_typed_config_reads_back_as_itself():
    config, _ = checked("task.sizes=3,4", "optimizer.b1=0.8")
    assert from_dict(to_dict(config)) == config


def test_references_to_the_environment_wait_until_they_are_used():
    config, found = checked("task.model.layers=env:LAYERS")
    assert found == []
    assert config.task.options["model"].options["layers"] == "env:LAYERS"


OPTION_NAMES = [
    "model",
    "rate",
    "kind",
    "sizes",
    "splits",
    "layers",
    "b1",
    "mask",
    "mu_dtype",
    "seq",
    "type",
    "learning_rate",
]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.builds(Text, st.text(max_size=6))
)
TYPES = st.sampled_from(
    [f"{HERE}:{name}" for name in ("Task", "Model", "Source", "nothing", "instance")] + ["optax:sgd", "a:b"]
)
OPTIONS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(OPTION_NAMES), inner, max_size=3)
        | st.builds(
            lambda kind, options: {**options, "type": kind},
            TYPES,
            st.dictionaries(st.sampled_from(OPTION_NAMES), inner),
        )
    ),
    max_leaves=8,
)
GROUPS = st.sampled_from(["task", "data", "optimizer", "schedule"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        GROUPS,
        st.builds(
            lambda kind, options: {**options, "type": kind},
            TYPES,
            st.dictionaries(st.sampled_from(OPTION_NAMES), OPTIONS),
        ),
    )
)
def test_no_malformed_option_raises_anything(values):
    config, found = check_options(parse(values).config)
    assert all(str(problem).isprintable() for problem in found)
    assert isinstance(config, Config)


def test_every_optimizer_of_optax_can_be_named_without_options():
    for name in ("adamw", "lion", "adafactor", "sgd", "contrib:muon"):
        path = f"optax.{name}" if ":" in name else f"optax:{name}"
        optimizer = dataclasses.replace(Config().optimizer, type=path)
        assert type_options(optimizer, "optimizer", ("learning_rate",))[1] == []
