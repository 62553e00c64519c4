import dataclasses
from typing import Any

import optax
import pytest
from flax import nnx

from jaxtrain.build import build
from jaxtrain.config import Config, Optimizer, Spec, Text
from jaxtrain.errors import ConfigError, DataError
from jaxtrain.redact import redact

HERE = "tests.build.build_test"


@dataclasses.dataclass(frozen=True)
class Task:
    model: Any
    vocab_size: int = 1
    extra: Any = None


class Net(nnx.Module):
    def __init__(self, size: int, vocab_size: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(vocab_size, size, rngs=rngs)


def anything(**kwargs):
    return kwargs


def secretive(token: str, port: int = 0, headers: Any = None):
    return token, port, headers


def picky(size: int):
    raise ValueError(f"size {size} is odd")


def missing_file():
    raise DataError("no such file")


def broken():
    raise TypeError("a mistake of the author")


pair = (len, max)


def test_specs_among_the_options_are_built_first_with_the_same_runtime():
    spec = Spec(f"{HERE}:Task", {"model": Spec(f"{HERE}:Net", {"size": 3})})
    task = build(spec, vocab_size=5, rngs=nnx.Rngs(0))
    assert task.vocab_size == 5
    assert task.model.linear.kernel.shape == (5, 3)


def test_options_win_over_what_the_trainer_passes():
    assert build(Spec(f"{HERE}:Task", {"model": None, "vocab_size": 7}), vocab_size=5).vocab_size == 7


def test_the_trainer_passes_only_what_a_signature_names():
    assert build(Spec(f"{HERE}:anything", {"a": 1}), vocab_size=5) == {"a": 1}


def test_specs_inside_lists_and_mappings_are_built():
    inner = Spec(f"{HERE}:anything", {"x": 1})
    task = build(Spec(f"{HERE}:Task", {"model": (inner, 2), "extra": {"a": inner}}))
    assert (task.model, task.extra) == (({"x": 1}, 2), {"a": {"x": 1}})


def test_an_optimizer_is_built_with_its_options():
    transformation = build(Optimizer(options={"b1": Text("0.8")}), "optimizer", learning_rate=0.1)
    assert isinstance(transformation, optax.GradientTransformation)


def test_objects_of_python_are_taken_as_they_are():
    task = Task(None)
    assert build(task) is task
    assert build(Spec(task)) is task
    assert build(Spec(f"{HERE}:pair")) == pair
    assert build(Spec(f"{HERE}:Task", {"model": len})).model is len


def test_secrets_are_resolved_at_use_and_typed(monkeypatch):
    monkeypatch.setenv("MY_VARIABLE", "sentinel-8841")
    monkeypatch.setenv("MY_PORT", "8080")
    spec = Spec(
        f"{HERE}:secretive", {"token": "env:MY_VARIABLE", "port": "env:MY_PORT", "headers": {"a": "env:MY_VARIABLE"}}
    )
    assert build(spec) == ("sentinel-8841", 8080, {"a": "sentinel-8841"})
    assert redact("sentinel-8841") == "<redacted>"
    assert "sentinel-8841" not in repr(spec)


def test_a_secret_that_is_missing_or_of_another_type_is_told_by_variable_and_key(monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    monkeypatch.setenv("MY_PORT", "sentinel-x1")
    with pytest.raises(ConfigError, match=r"--config.callbacks.c.token=env:NOT_THERE: .*NOT_THERE is not set"):
        build(Spec(f"{HERE}:secretive", {"token": "env:NOT_THERE"}), "callbacks.c")
    with pytest.raises(ConfigError, match=r"c.port=env:MY_PORT: its value must be a whole number") as error:
        build(Spec(f"{HERE}:secretive", {"token": "x", "port": "env:MY_PORT"}), "callbacks.c")
    assert "sentinel" not in str(error.value)


def test_wrong_options_are_refused_also_without_a_check_before():
    with pytest.raises(ConfigError, match=r"--config.task.sizes=3: is not an option"):
        build(Spec(f"{HERE}:Task", {"model": None, "sizes": 3}), "task")
    with pytest.raises(ConfigError, match=r"--config.model=: is missing"):
        build(Spec(f"{HERE}:Task"))


def test_a_target_that_refuses_its_options_is_a_problem_of_the_config():
    with pytest.raises(
        ConfigError, match=r"--config.task.type=.*picky: it refuses its options: ValueError: size 3 is odd"
    ):
        build(Spec(f"{HERE}:picky", {"size": 3}), "task")


def test_other_errors_of_a_target_keep_their_traceback():
    with pytest.raises(DataError, match="no such file"):
        build(Spec(f"{HERE}:missing_file"), "data")
    with pytest.raises(TypeError, match="a mistake"):
        build(Spec(f"{HERE}:broken"), "data")


def test_runtime_values_of_any_name_can_be_passed():
    assert build(Spec(f"{HERE}:anything"), "task", where=1, spec=Config()) == {}
