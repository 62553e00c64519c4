import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.config import split_argv, unknown_flags
from jaxtrain.config.overrides import apply
from jaxtrain.errors import ConfigError


@pytest.mark.parametrize(
    "argv",
    [
        ["--config=F.py", "--config.a.b=1", "--workdir=D"],
        ["--workdir=D", "--config.a.b", "1", "--config", "F.py"],
        ["--config.a.b=1", "--workdir=D", "--config=F.py"],
    ],
)
def test_flags_are_read_in_any_order_and_with_or_without_an_equals_sign(argv):
    assert split_argv(argv) == ("F.py", ["a.b=1"], ["--workdir=D"])


def test_values_may_be_negative_empty_or_hold_equals_signs():
    argv = ["--config.a", "-5", "--config.b=", "--config.c=x=y", "--config.d", "5 steps"]
    assert split_argv(argv) == (None, ["a=-5", "b=", "c=x=y", "d=5 steps"], [])


def test_a_flag_without_its_value_is_refused_with_all_others():
    with pytest.raises(ConfigError) as error:
        split_argv(["--config.deterministic", "--config.a=1", "--config.b"])
    assert [problem.key for problem in error.value.problems] == ["--config.deterministic", "--config.b"]
    assert "--config.deterministic=VALUE" in str(error.value)


def test_other_flags_that_only_begin_alike_are_left_alone():
    assert split_argv(["--configs=x", "--config_file", "y"]) == (None, [], ["--configs=x", "--config_file", "y"])


def test_unknown_flags_are_told_with_the_nearest_known_one():
    (first, second, third) = unknown_flags(["--workdri=a", "--fresh", "stray", "--xyz"], ["--workdir", "--fresh"])
    assert str(first) == "--workdri=a: is not a flag. Use --workdir=a."
    assert str(second) == "--=stray: is a value without a flag."
    assert third.fix == "There are --workdir, --fresh, --config."


def test_the_value_of_an_unknown_flag_that_looks_secret_is_not_shown():
    assert "sentinel-112" not in str(unknown_flags(["--api_key=sentinel-112"], ["--workdir"])[0])


def test_overrides_make_groups_that_do_not_exist_and_the_last_one_wins():
    draft = apply({"a": {"b": 1}}, ["a.b=2", "evals.test.data.split=test", "a.b=3"])
    assert draft.raw == {"a": {"b": "3"}, "evals": {"test": {"data": {"split": "test"}}}}
    assert draft.flags == {"a.b", "evals.test.data.split"}
    assert draft.problems == ()


def test_overrides_leave_what_they_are_set_over_untouched():
    values = {"a": {"b": 1}}
    apply(values, ["a.b=2"])
    assert values == {"a": {"b": 1}}


@pytest.mark.parametrize("override", ["", "=1", ".a=1", "a.=1", "a..b=1", "a.b.c=1", "m=b:C"])
def test_overrides_that_cannot_be_set_are_problems(override):
    draft = apply({"a": {"b": 1}, "m": {"type": "a:B"}}, [override])
    assert len(draft.problems) == 1
    assert draft.raw == {"a": {"b": 1}, "m": {"type": "a:B"}}


@given(st.lists(st.text(max_size=12) | st.sampled_from(["--config", "--config.a", "--config.", "--config=", "--"])))
def test_any_argv_is_split_or_refused(argv):
    try:
        argument, overrides, rest = split_argv(argv)
    except ConfigError:
        return
    assert len(overrides) + len(rest) + (argument is not None) <= len(argv)
