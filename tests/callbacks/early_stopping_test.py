"""Early stopping: at which evaluation, and at the same one however often the run was interrupted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.callbacks.early_stopping import EarlyStopping, evaluations_since_best
from jaxtrain.errors import ConfigError
from jaxtrain.preemption import Signals
from jaxtrain.train import train
from tests.classifier import At, checked_config, make_config, rows, split_steps

STOPPING = {"type": "jaxtrain.callbacks.early_stopping:EarlyStopping", "patience": 2}


@given(st.lists(st.integers(-4, 4), max_size=12), st.sampled_from(["min", "max"]), st.integers(0, 2))
def test_what_counts_are_the_evaluations_after_the_last_that_beat_all_before(values, mode, min_delta):
    signed = [value if mode == "min" else -value for value in values]
    bests: list[int] = []
    for place, value in enumerate(signed):
        if not bests or value < signed[bests[-1]] - min_delta:
            bests.append(place)
    expected = len(values) - 1 - bests[-1] if bests else 0
    assert evaluations_since_best(values, mode, min_delta) == expected


def test_nan_is_never_the_best():
    assert evaluations_since_best([math.nan, math.nan]) == 2
    assert evaluations_since_best([math.nan, 3.0, math.nan, 2.0, math.nan]) == 1
    assert evaluations_since_best([math.inf, 3.0]) == 0


def config_of(*callbacks, **options):
    """A rate of 0: the first evaluation is the best one, so that with patience 2 the third ends the run, at step 6."""
    config = make_config(duration="12 steps", checkpoint={"every": "1 step"})
    config.optimizer.learning_rate = 0.0
    config.evals.validation = {"every": "2 steps", "data": {"type": rows(16, seed=1)}}
    config.callbacks = {"stopping": {**STOPPING, **options}}
    for number, callback in enumerate(callbacks):
        config.callbacks[f"other{number}"] = {"type": callback}
    return config


LINES = [("validation", 2), ("train", 4), ("validation", 4), ("validation", 6), ("train", 6)]


def test_a_run_ends_when_patience_is_over_and_says_why(tmp_path, caplog):
    result = train(config_of(), tmp_path / "w")
    assert (result.status, result.step, split_steps(result.history)) == ("finished", 6, LINES)
    reason = (tmp_path / "w" / "status.json").read_text()
    assert "early stopping: loss of validation was" in reason
    assert "and no better in 2 evaluations since" in reason
    again = train(config_of(), tmp_path / "w")
    assert (again.step, again.state) == (6, None)


def test_a_run_that_was_stopped_in_between_ends_at_the_same_step(tmp_path):
    signals = Signals()
    stop = At(5, lambda run: setattr(signals, "requested", "SIGTERM"))
    assert train(config_of(stop), tmp_path / "w", signals=signals).step == 5
    result = train(config_of(), tmp_path / "w")
    assert (result.status, result.step, split_steps(result.history)) == ("finished", 6, LINES)


def test_a_run_killed_right_after_its_last_evaluation_makes_no_step_more(tmp_path):
    def die(run):
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(config_of(At(6, die, name="validation")), tmp_path / "w")
    result = train(config_of(), tmp_path / "w")
    assert (result.status, result.step, split_steps(result.history)) == ("finished", 6, LINES)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"eval_name": "test"}, "eval_name='test' is none of the evals: validation"),
        ({"mode": "least"}, "--config.callbacks.stopping.mode"),
        ({"patience": 0}, "patience=0 must be 1 or more"),
        ({"min_delta": -1.0}, "min_delta=-1.0 0 or more"),
        ({"metric": "acuracy"}, "metric='acuracy' is no number of the eval 'validation'; it has accuracy, loss"),
    ],
)
def test_what_cannot_be_watched_is_refused_before_the_first_step(tmp_path, options, told):
    with pytest.raises(ConfigError, match=told):
        train(config_of(**options), tmp_path / "w")


def test_an_eval_without_a_cadence_is_refused():
    config = checked_config(evals={"validation": {}})
    with pytest.raises(ValueError, match=r"set evals\.validation\.every"):
        EarlyStopping(config)
