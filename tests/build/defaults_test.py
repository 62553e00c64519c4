import dataclasses

import numpy as np
import pytest

from jaxtrain.build.defaults import default_of
from jaxtrain.config.drift import ABSENT, compare

HERE = "tests.build.defaults_test"


@dataclasses.dataclass(frozen=True)
class Task:
    model: object
    delta: float = 1
    sizes: tuple[int, ...] = (1, 2)
    mask: object = None
    dtype: object = np.float32
    vocab_size: int = 7


def model(width=32, *, depth: int):
    raise AssertionError


CONFIG = {"task": {"type": f"{HERE}:Task", "model": {"type": f"{HERE}:model"}}, "seed": 0}


@pytest.mark.parametrize(
    ("key", "expected"),
    [("task.delta", 1.0), ("task.sizes", (1, 2)), ("task.model.width", 32)],
)
def test_a_default_has_the_type_of_an_option_that_is_given(key, expected):
    found = default_of(CONFIG, key)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    "key",
    [
        "task.mask",  # None: it may leave the choice to the trainer
        "task.dtype",  # no plain data
        "task.vocab_size",  # what the trainer passes
        "task.model.depth",  # required
        "task.nothing",
        "task.model.width.deeper",
        "data.n",
        "seeds",
    ],
)
def test_what_a_signature_does_not_say_is_absent(key):
    assert default_of(CONFIG, key) == ABSENT


@pytest.mark.parametrize("target", ["", "<object of class X>", "no.such.module:X", f"{HERE}:HERE", 3])
def test_a_target_that_cannot_be_read_has_no_defaults(target):
    assert default_of({"task": {"type": target}}, "task.delta") == ABSENT


def test_writing_a_default_down_or_leaving_it_away_is_no_drift():
    explicit = {**CONFIG, "task": {**CONFIG["task"], "delta": 1.0, "sizes": [1, 2]}}
    assert compare(CONFIG, explicit, default_of) == compare(explicit, CONFIG, default_of) == []
    assert [change.key for change in compare(CONFIG, explicit)] == ["task.delta", "task.sizes"]


def test_another_value_is_told_with_the_default_that_it_replaces():
    other = {**CONFIG, "task": {**CONFIG["task"], "delta": 2.0, "mask": None}}
    assert [str(change) for change in compare(CONFIG, other, default_of)] == [
        "task.delta: 1.0 -> 2.0",
        "task.mask: (absent) -> None",
    ]
