import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, Optional, Union

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.config.coerce import NOTHING, MismatchError, Text, coerce, describe


class Color(enum.Enum):
    RED = 1
    BLUE = 2


Steps = NewType("Steps", int)


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("8", int, 8),
        ("200_000", int, 200_000),
        ("1e-3", float, 1e-3),
        ("5", float, 5.0),
        ("False", bool, False),
        ("true", bool, True),
        ("5", str, "5"),
        ("none", int | None, None),
        ("5", Optional[int], 5),  # noqa: UP045  the old spelling is what libraries still use
        ("none", Optional[str], None),  # noqa: UP045
        ("0.5", Union[bool, int, float, complex], 0.5),  # noqa: UP007
        ("5", int | str, 5),
        ("a5", int | str, "a5"),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("RED", Color, Color.RED),
        ("1,2", tuple[int, ...], (1, 2)),
        ("(1, 2)", tuple[int, int], (1, 2)),
        ("[1, 2.5]", list[float], [1.0, 2.5]),
        ("3,", Sequence[int], (3,)),
        ("()", tuple[int, ...], ()),
        ("a,b", tuple[str, ...], ("a", "b")),
        ("**/*.py,", Sequence[str], ("**/*.py",)),
        ("{'train': 1}", Mapping[str, float], {"train": 1.0}),
        ("{'train': 1}", dict[str, float] | None, {"train": 1.0}),
        ("0.9", Any, 0.9),
        ("bfloat16", Any, "bfloat16"),
        ("none", Any, None),
        ("((((", Any, "(((("),
        ("bfloat16", np.dtype | None, "bfloat16"),
        ("7", Steps, 7),
        ("7", Annotated[int, "unit"], 7),
    ],
)
def test_a_text_is_converted_to_its_type(text, annotation, value):
    converted = coerce(Text(text), annotation)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("value", "annotation", "nearest"),
    [
        (True, int, NOTHING),  # a truth value is no number, though Python counts it as one
        (1, bool, True),
        (Text("yes"), bool, True),
        (2.0, int, 2),
        (Text("2.7"), int, 3),
        (Text("a"), int, NOTHING),
        (Text("a"), float, NOTHING),
        ("0.5", float, 0.5),
        (2**53 + 1, float, float(2**53)),  # would lose its last digit silently
        (10**400, float, NOTHING),
        (2**70, int, 2**63 - 1),
        (5, str, "5"),
        (None, str, NOTHING),
        (3, tuple[int, ...], (3,)),  # ml_collections makes (3,) of it
        (("a", 1), tuple[int, ...], NOTHING),  # and takes this
        ((1, 2.0), tuple[int, ...], (1, 2)),
        ((1, 2), tuple[int, int, int], NOTHING),
        (Text("3"), tuple[int, ...], (3,)),
        ("ab", Sequence[str], ("ab",)),  # a string is a sequence of strings only by accident
        (Text("adm"), Literal["adam", "sgd"], "adam"),
        (True, Literal[1, 2], NOTHING),
        (Text("abc"), Union[float, Callable], NOTHING),  # noqa: UP007
        ({"a": "b"}, Mapping[str, float], NOTHING),
        (3, Mapping[str, float], NOTHING),
    ],
)
def test_what_is_not_of_its_type_is_refused_with_the_nearest_value_that_is(value, annotation, nearest):
    with pytest.raises(MismatchError) as mismatch:
        coerce(value, annotation)
    assert mismatch.value.nearest == nearest
    assert mismatch.value.allowed


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (3, float),
        (np.float32(0.5), float),
        (np.int64(3), int),
        ([1, 2], tuple[int, ...]),
        (object, Callable),
        (None, Any),
    ],
)
def test_values_of_python_that_are_of_the_type_pass(value, annotation):
    assert coerce(value, annotation) == (tuple(value) if isinstance(value, list) else value)


ANNOTATIONS = [int, float, bool, str, int | None, Any, Literal["a", 1], tuple[int, ...], tuple[str, int], list[float]]
ANNOTATIONS += [dict[str, int], Mapping[int, Any], Sequence[str] | None, Color, float | Callable, np.ndarray, "Forward"]
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text().map(Text)
    | st.builds(lambda: 10**5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@given(PLAIN, st.sampled_from(ANNOTATIONS))
def test_any_value_is_of_its_type_or_refused_by_a_mismatch(value, annotation):
    with contextlib.suppress(MismatchError):
        coerce(value, annotation)


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_every_type_has_words(annotation):
    assert describe(annotation)


def test_types_are_described_as_a_user_would_say_it():
    assert describe(tuple[int, ...]) == "a list with commas, each a whole number"
    assert describe(float | None) == "a number or none"
    assert describe(Literal["a", "b"]) == "one of a, b"
