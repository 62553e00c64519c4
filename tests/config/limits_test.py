import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.config import limits

COUNTS = [limits.between(0, 2**32 - 1), limits.at_least(1), limits.rest_or_count()]
TEXTS = [
    limits.one_of("float32", "bfloat16"),
    limits.length(),
    limits.length(empty="never"),
    limits.length(empty="none", time=False),
    limits.import_path("optax:adamw"),
    limits.import_path("optax:adamw", empty="as in data"),
    limits.words("letters", r"[a-z]+", reserved=("train",)),
    limits.step_range(),
]


@pytest.mark.parametrize(
    ("limit", "value", "nearest"),
    [
        (limits.at_least(1), 0, 1),
        (limits.at_least(0.0), -0.5, 0.0),
        (limits.at_least(0.0), math.nan, None),
        (limits.at_least(0.0), math.inf, None),
        (limits.between(0, 10), 11, 10),
        (limits.fraction(), 1.0, 0.999),
        (limits.fraction(), 99.9, 0.999),
        (limits.fraction(), -0.5, 0.0),
        (limits.fraction(), math.nan, None),
        (limits.or_none(limits.at_least(0.0)), -0.5, 0.0),
        (limits.rest_or_count(), 0, 1),
        (limits.rest_or_count(), -2, -1),
        (limits.one_of("float32", "bfloat16"), "bf16", "bfloat16"),
        (limits.length(), "", "1000 steps"),
        (limits.length(), "-5 steps", "5 steps"),
        (limits.length(empty="none", time=False), "5 hours", "1000 steps"),
        (limits.import_path("optax:adamw"), "adam", "optax:adam"),
        (limits.import_path("optax:adamw"), "my.models.Net", "my.models:Net"),
        (limits.import_path("optax:adamw"), "my.models::Net", "my.models:Net"),
        (limits.import_path("optax:adamw"), "", None),
        (limits.import_path("optax:adamw"), 3, None),
        (limits.words("letters, _", r"[a-z_]+", reserved=("train",)), "train", "train_set"),
        (limits.step_range(), "10", "10:13"),
        (limits.step_range(), "10-13", "10:13"),
        (limits.step_range(), "5:2", "5:6"),
        (limits.step_range(), "0:0", "1:2"),
        (limits.step_range(), "some", None),
        (limits.words("letters", r"[a-z]+"), "Test", "test"),
    ],
)
def test_a_wrong_value_is_refused_and_the_nearest_right_one_known(limit, value, nearest):
    assert not limit.accepts(value)
    assert limit.nearest(value) == nearest
    assert nearest is None or limit.accepts(nearest)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        (limits.at_least(1), 1),
        (limits.between(0, 10), 10),
        (limits.rest_or_count(), -1),
        (limits.fraction(), 0.0),
        (limits.fraction(), 0.9999),
        (limits.or_none(limits.at_least(0.0)), None),
        (limits.or_none(limits.at_least(0.0)), 0.0),
        (limits.length(empty="never"), ""),
        (limits.length(), "8 hours"),
        (limits.import_path("optax:adamw"), "my_pkg.sub:Class.method"),
        (limits.import_path("optax:adamw"), object()),
        (limits.import_path("optax:adamw", empty="as in data"), ""),
        (limits.regex(), "^a"),
        (limits.regex(empty="none"), ""),
    ],
)
def test_values_at_the_bounds_are_accepted(limit, value):
    assert limit.accepts(value)


@given(st.integers(), st.sampled_from(COUNTS))
def test_every_count_is_accepted_or_has_a_nearest_one_that_is(value, limit):
    assert limit.accepts(value) or limit.accepts(limit.nearest(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_is_accepted_or_has_a_nearest_one_that_is(value):
    limit = limits.at_least(0.0)
    assert limit.accepts(value) or limit.accepts(limit.nearest(value))


@given(st.text(), st.sampled_from(TEXTS))
def test_every_text_is_accepted_or_has_no_nearest_or_one_that_is(value, limit):
    if not limit.accepts(value):
        nearest = limit.nearest(value)
        assert nearest is None or limit.accepts(nearest)
