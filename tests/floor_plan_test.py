"""Holds the package to the rules of `tests/floor_plan.py`, each with a negative control."""

import ast

import pytest

from tests.floor_plan import (
    FUNCTION_LINES,
    ROOT,
    early_jax,
    empty_names,
    package,
    private,
    private_names,
    too_long,
    undeclared_imports,
    unit,
    untested,
    upward_imports,
)


def assert_no(complaints: list[str]) -> None:
    assert not complaints, "\n".join(complaints)


def test_no_module_imports_from_a_floor_above_it():
    assert_no(upward_imports(package()))


@pytest.mark.parametrize(
    "source",
    [
        "import jaxtrain.train",
        "from jaxtrain import step",
        "from jaxtrain.tasks.language_modeling import LanguageModeling",
        "def f():\n    from jaxtrain import train",
        "if TYPE_CHECKING:\n    from jaxtrain.step import TrainState",
        "import jaxtrain",
        "from . import losses",
        "from jaxtrain import new_module",
    ],
)
def test_an_upward_import_is_found_however_it_is_written(source):
    assert len(upward_imports({"jaxtrain.models.mlp": source})) == 1


def test_imports_from_the_same_floor_and_below_are_fine():
    assert (
        upward_imports(
            {"jaxtrain.models.mlp": "import jax\nfrom jaxtrain.models import losses\nimport jaxtrain.errors"}
        )
        == []
    )


def test_a_module_without_a_floor_is_found():
    assert upward_imports({"jaxtrain.extra": ""}) == ["jaxtrain.extra has no floor: give it one in FLOORS"]


def test_what_runs_before_jax_does_not_import_it():
    assert_no(early_jax(package()))


def test_jax_is_found_behind_another_module_but_not_inside_a_function():
    through = {"jaxtrain.config": "from jaxtrain.typing import Array", "jaxtrain.typing": "import jax.numpy as jnp"}
    assert early_jax(through) == ["importing jaxtrain.config imports jax.numpy"]
    by_package = {"jaxtrain": "import flax", "jaxtrain.errors": ""}
    assert early_jax(by_package) == ["importing jaxtrain.errors imports flax"]
    assert early_jax({"jaxtrain.preemption": "def f():\n    import jax"}) == []


def test_imported_packages_are_declared_and_those_of_extras_are_imported_late():
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert_no(undeclared_imports(package(), pyproject))
    assert len(undeclared_imports({"jaxtrain.data": "import torch"}, pyproject)) == 1
    assert len(undeclared_imports({"jaxtrain.data": "import tokenizers"}, pyproject)) == 1
    assert undeclared_imports({"jaxtrain.data": "def f():\n    import tokenizers"}, pyproject) == []


def test_private_names_of_other_packages_are_in_compat_alone():
    assert_no(private_names(package()))


@pytest.mark.parametrize(
    "source",
    [
        "from jax._src import core",
        "import jax._src.core as core",
        "from orbax.checkpoint._src.metadata import tree",
        "import jax\njax._src.core.f()",
        "import jax.numpy as jnp\njnp._helper(1)",
        "from flax import nnx\nclass A(nnx._Private): pass",
        "import importlib\nimportlib.import_module('jax._src.core')",
        "def f(manager):\n    return manager._handler",
    ],
)
def test_a_private_name_is_found_however_it_is_written(source):
    assert private_names({"jaxtrain.step": source})
    assert private_names({"jaxtrain.compat": source}) == []


def test_our_own_private_names_and_public_ones_are_fine():
    source = "import jax, os\nclass A:\n    def __init__(self): self._x = 1\n    def f(self, other): return other._x"
    assert private_names({"jaxtrain.step": source + "\nos._exit(jax.__version__)\npoint._replace(x=1)"}) == []


def test_each_public_name_of_compat_has_a_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if "compat" in str(path))
    names = {
        node.name
        for module, source in package().items()
        if unit(module) == "compat"
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not private(node.name)
    }
    assert {name for name in names if name not in tests} == set()


def test_files_and_functions_are_short():
    assert_no(too_long(package()))


def test_a_long_file_and_a_long_function_are_found():
    body = "\n".join(["    pass"] * FUNCTION_LINES)
    assert too_long({"jaxtrain.step": f"def f():\n{body}"}) == ["jaxtrain.step:1 f has 51 lines"]
    assert too_long({"jaxtrain.train": f"def train():\n{body}"}) == []
    assert len(too_long({"jaxtrain.train": f"def train():\n{body}\n{body}"})) == 1
    assert too_long({"jaxtrain.step": "x = 1\n" * 301}) == ["jaxtrain.step has 301 lines"]


def test_every_module_is_named_after_what_it_holds():
    assert_no(empty_names(package()))
    assert empty_names({"jaxtrain.data.utils": "", "jaxtrain.data.text": ""}) == ["jaxtrain.data.utils"]


def test_every_module_has_its_test_file():
    tests = {str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("*_test.py")}
    assert_no(untested(package(), tests))
    assert untested({"jaxtrain.data.text": "", "jaxtrain.data": ""}, set()) == [
        "jaxtrain.data.text: tests/data/text_test.py is missing"
    ]
    assert untested({"jaxtrain.data.text": ""}, {"data/text_test.py"}) == []
