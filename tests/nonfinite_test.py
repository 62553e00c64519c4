import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.errors import NonFiniteError
from jaxtrain.nonfinite import raise_if_halted
from jaxtrain.step import Counters, Interval, TrainState

PARAMS = {"a": {"bias": jnp.ones(2)}, "b": {"kernel": jnp.ones((2, 2))}}


def state(halted=True, bad_leaf=-1, params=PARAMS):
    counters = Counters(
        skipped=jnp.int32(7),
        empty=jnp.int32(0),
        in_a_row=jnp.int32(3),
        halted=jnp.array(halted),
        bad_step=jnp.int32(41),
        bad_leaf=jnp.int32(bad_leaf),
    )
    zero = jnp.int32(0)
    return TrainState(zero, params, {}, (), zero, counters, Interval(zero, {}))


def message(state):
    with pytest.raises(NonFiniteError) as raised:
        raise_if_halted(state.counters, state)
    assert raised.value.exit_code == 3
    return str(raised.value)


def test_nothing_happens_while_updates_are_applied_or_nothing_is_known():
    raise_if_halted(state(halted=False).counters, state(halted=False))
    raise_if_halted(None, state())


def test_the_message_names_the_step_the_counts_and_what_to_do():
    text = message(state())
    assert "not finite at step 41" in text
    assert "3 in a row, 7 in all" in text
    assert "--config.optimizer.learning_rate" in text
    assert "--config.nonfinite.policy=skip" in text


@pytest.mark.parametrize(
    ("bad_leaf", "words"),
    [(-1, "its gradients are finite, the loss is not"), (0, "that of a/bias"), (1, "that of b/kernel")],
)
def test_the_message_names_what_was_not_finite(bad_leaf, words):
    assert words in message(state(bad_leaf=bad_leaf))


def test_a_parameter_that_is_not_finite_itself_is_named_first():
    params = {**PARAMS, "b": {"kernel": jnp.array([[1.0, np.inf], [1.0, 1.0]])}}
    text = message(state(bad_leaf=0, params=params))
    assert "the parameter b/kernel itself is not finite" in text


def test_what_is_told_is_the_present_and_not_the_line_that_was_read():
    now = state(bad_leaf=1)
    line = dataclasses.replace(now.counters, bad_step=jnp.int32(3), skipped=jnp.int32(1))
    with pytest.raises(NonFiniteError, match=r"step 41.*b/kernel.*7 in all"):
        raise_if_halted(line, now)
