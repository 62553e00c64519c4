import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import optax
import pytest
from flax import nnx

from jaxtrain.build import import_target, signature
from jaxtrain.build.targets import REQUIRED, Option
from jaxtrain.errors import ConfigError

HERE = "tests.build.targets_test"


class Linen(nn.Module):
    size: int
    rate: float = 0.5


class Nnx(nnx.Module):
    def __init__(self, size: int, *, rngs: nnx.Rngs):
        self.size = size


@dataclasses.dataclass(frozen=True)
class Data:
    size: "int"
    other: "NoSuchName" = 1  # noqa: F821  as names that only a type checker imports


class Pair(NamedTuple):
    first: int
    second: str = ""


class Empty:
    pass


class Nested:
    @classmethod
    def make(cls, size: int) -> int:
        return size


def function(a, b=True, c="x", d=3, *args: int, e: float = 1.0, **kwargs: Any):
    return a


@functools.wraps(Nested.make)
def wrapped(*args, **kwargs):
    return Nested.make(*args, **kwargs)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (Linen, {"size": Option(int, REQUIRED), "rate": Option(float, 0.5)}),  # neither parent nor name
        (Nnx, {"size": Option(int, REQUIRED), "rngs": Option(nnx.Rngs, REQUIRED)}),  # its metaclass hides __init__
        (Data, {"size": Option(int, REQUIRED), "other": Option(Any, 1)}),
        (Pair, {"first": Option(int, REQUIRED), "second": Option(str, "")}),
        (Empty, {}),
        (Nested.make, {"size": Option(int, REQUIRED)}),
        (wrapped, {"size": Option(int, REQUIRED)}),
    ],
)
def test_a_signature_is_that_of_the_target_itself(target, options):
    assert dict(signature(target).options) == options
    assert not signature(target).takes_any


def test_a_function_with_keyword_arguments_takes_any():
    found = signature(function)
    assert found.takes_any
    kinds = {name: option.annotation for name, option in found.options.items()}
    assert kinds == {"a": Any, "b": bool, "c": str, "d": Any, "e": float}


def test_optimizers_of_optax_show_their_options():
    assert {"learning_rate", "b1", "weight_decay"} <= set(signature(optax.adamw).options)


@pytest.mark.parametrize("path", ["optax:adamw", "optax.contrib:muon", f"{HERE}:Nested.make", "os.path:join"])
def test_what_a_path_names_is_imported(path):
    assert callable(import_target(path))


def test_files_of_the_current_directory_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "my_own_model.py").write_text("class Net: pass\n")
    monkeypatch.chdir(tmp_path)
    assert import_target("my_own_model:Net").__name__ == "Net"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("optx:adamw", "there is no module optx. Did you mean optax"),
        ("optax.contribb:muon", "there is no module optax.contribb. Did you mean optax.contrib"),
        ("optax:adamm", "optax has no adamm. Did you mean"),
        (f"{HERE}:Nested.mak", "Did you mean make?"),
        ("no_such_thing_at_all.x:y", "there is no module no_such_thing_at_all. It must be installed"),
    ],
)
def test_what_does_not_exist_is_told_with_close_matches(path, told):
    with pytest.raises(ConfigError) as error:
        import_target(path, "optimizer")
    assert str(error.value.problems[0]).startswith(f"--config.optimizer.type={path}: ")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_dependency\n", "No module named 'no_such_dependency' (line 1 of"),
        ("x = 1\nraise RuntimeError('broken\\nhere')\n", "RuntimeError: broken here (line 2 of"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3 (line 1 of"),
    ],
)
def test_a_module_that_fails_is_told_by_file_and_line(tmp_path, monkeypatch, text, told):
    (tmp_path / "failing_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        import_target("failing_module:Net", "task")
    assert told in str(error.value)
    assert "failing_module" in str(error.value)
