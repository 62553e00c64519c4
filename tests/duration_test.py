import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.duration import UNITS, Duration, Every, nearest


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("5000 steps", 5000),
        ("1 step", 1),
        ("3 epochs", 30),  # 3 * 100 / 10
        ("2.5 epochs", 25),
        ("1.01 epochs", 11),  # 10.1: the part of a step that is over rounds up
        ("200_000 examples", 20_000),
        ("11 examples", 2),
        ("1.5e9 tokens", 37_500_000),  # 1.5e9 / (10 * 4)
    ],
)
def test_a_duration_is_over_at_the_first_step_that_completes_it(text, steps):
    assert Duration.parse(text).steps(batch_size=10, num_examples=100, tokens_per_example=4) == steps


def test_steps_are_exact_where_floats_are_not():
    # 0.1 * 30 is 3.0000000000000004 in floats, which would round up to 4.
    assert Duration.parse("0.1 epochs").steps(batch_size=1, num_examples=30) == 3
    assert Duration.parse("1e18 examples").steps(batch_size=10**18 - 1) == 2


@pytest.mark.parametrize(
    ("text", "secs"), [("90 minutes", 5400), ("8 hours", 28800), ("30 seconds", 30), ("1 day", 86400)]
)
def test_times_are_seconds_and_no_steps(text, secs):
    duration = Duration.parse(text)
    assert duration.is_time
    assert duration.secs == secs
    with pytest.raises(ValueError, match="is a time"):
        duration.steps(1, 1, 1)


def test_units_that_mean_nothing_here_are_refused():
    with pytest.raises(ValueError, match="tokens"):
        Duration.parse("10 tokens").steps(1, 1)
    with pytest.raises(ValueError, match="length"):
        Duration.parse("10 epochs").steps(1)


def test_nothing_is_no_duration():
    assert Duration.parse("") is None


@pytest.mark.parametrize(
    "text",
    [
        "5000",
        "steps",
        "-5 steps",
        "0 steps",
        "2.5 steps",
        "nan steps",
        "inf epochs",
        "5 stpes",
        "1e99 steps",
        "5 steps 3",
        " ",
    ],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("-5 steps", "5 steps"),
        ("5000", "5000 steps"),
        ("5 stpes", "5 steps"),
        ("2.5 steps", "3 steps"),
        ("3 epoch s", "3 steps"),
        ("10min", "10 minutes"),
        ("epochs", "1 epochs"),
        ("1e99 steps", "1000000000000000000 steps"),
        ("9" * 5000, "1000000000000000000 steps"),
    ],
)
def test_the_nearest_duration_is_what_was_meant(text, meant):
    assert nearest(text) == meant


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused_and_its_nearest_is_one(text):
    try:
        Duration.parse(text)
    except ValueError:
        assert Duration.parse(nearest(text)) is not None


@given(st.integers(1, 10**6), st.sampled_from(UNITS))
def test_a_duration_reads_back_what_it_prints(number, unit):
    duration = Duration.parse(f"{number} {unit}")
    assert Duration.parse(str(duration)) == duration


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50), st.integers(1, 30))
def test_over_a_run_every_is_due_once_for_each_whole_period(tenths, num_examples, batch_size, num_steps):
    text = f"{tenths / 10} epochs"
    every = Every(Duration.parse(text), batch_size, num_examples)
    due = [step for step in range(1, num_steps + 1) if every.due(step)]
    period = Fraction(tenths, 10) * num_examples / batch_size
    assert due == sorted({math.ceil(period * k) for k in range(1, math.floor(num_steps / period) + 1)})


def test_every_epoch_is_due_where_the_position_passes_the_end_of_one():
    every = Every(Duration.parse("1 epoch"), batch_size=4, num_examples=10)
    assert [step for step in range(1, 11) if every.due(step)] == [3, 5, 8, 10]  # positions 12, 20, 32, 40


def test_time_is_due_when_a_multiple_lies_between_two_moments():
    every = Every(Duration.parse("10 seconds"), batch_size=4)
    assert not every.due(1, secs=9.9, previous_secs=0.0)
    assert every.due(2, secs=10.0, previous_secs=9.9)
    assert not every.due(3, secs=19.0, previous_secs=10.0)
    assert every.due(4, secs=41.0, previous_secs=19.0)


@given(*[st.integers(1, 12)] * 5)
def test_a_multiple_is_due_only_where_the_other_is(ours, theirs, batch_size, num_examples, factor):
    def every(text):
        return Every(Duration.parse(text), batch_size, num_examples)

    one, other = every(f"{ours} epochs"), every(f"{theirs} examples")
    if one.falls_on(other):
        assert all(other.due(step) for step in range(1, 200) if one.due(step))
    assert every(f"{factor * theirs} examples").falls_on(other)
    assert not every(f"{2 * theirs + 1} examples").falls_on(every(f"{2 * theirs} examples"))
    assert not any(every(text).falls_on(other) or other.falls_on(every(text)) for text in ("", "1 hour"))


def test_never_is_never_due():
    assert not any(Every(None, 1).due(step, step * 1e9) for step in range(1, 100))


UNITS = ("steps", "examples", "epochs", "tokens", "seconds", "minutes")
PERIODS = st.builds(lambda amount, unit: Duration.parse(f"{amount} {unit}"), st.integers(1, 12), st.sampled_from(UNITS))


@given(PERIODS, PERIODS)
def test_of_two_periods_that_meet_the_rarer_is_never_due_without_the_other(first, second):
    if not first.meets(second, batch_size=4):
        assert first != second
        return
    one, other = (Every(duration, 4, num_examples=10, tokens_per_example=3) for duration in (first, second))
    due = [(one.due(step, 7 * step, 7 * (step - 1)), other.due(step, 7 * step, 7 * (step - 1))) for step in range(200)]
    assert len(set(due) & {(True, False), (False, True)}) < 2
    assert second.meets(first, batch_size=4)


def test_periods_meet_across_units_that_can_be_compared():
    def meet(first, second):
        return Duration.parse(first).meets(Duration.parse(second), batch_size=4)

    assert meet("3 steps", "12 examples")
    assert meet("1 hour", "20 minutes")
    assert not meet("3 steps", "2 steps")
    assert not meet("1 epoch", "10 steps")
    assert not meet("1 hour", "3600 steps")
