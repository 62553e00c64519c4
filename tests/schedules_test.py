"""Each schedule against its formula, its way from the peak to its end, and warmups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.schedules import constant, cosine, inverse_sqrt, linear, with_warmup, wsd

UPDATES = np.arange(30)


def factors(schedule, updates=UPDATES):
    return np.asarray(jax.vmap(schedule)(jnp.asarray(updates, jnp.int32)))


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_cosine_and_linear_follow_their_formulas_and_stay_at_their_end(final):
    progress = np.minimum(UPDATES / 20, 1)
    expected = final + (1 - final) * (1 + np.cos(np.pi * progress)) / 2
    np.testing.assert_allclose(factors(cosine(20, final)), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(factors(linear(20, final)), 1 - (1 - final) * progress, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("num_steps", "decay", "begins"), [(20, 0.25, 15), (20, 1.0, 0), (7, 0.5, 3), (20, 0.01, 19)])
@pytest.mark.parametrize("final", [0.0, 0.1])
def test_wsd_stays_at_its_peak_and_falls_in_a_line_to_the_end_of_the_run(num_steps, decay, begins, final):
    expected = np.interp(UPDATES, [begins, num_steps], [1.0, final])
    np.testing.assert_allclose(factors(wsd(num_steps, decay, final)), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("decay", [0.0, -0.1, 1.1])
def test_wsd_refuses_a_decay_that_is_no_share_of_the_run(decay):
    with pytest.raises(ValueError, match="share of the steps"):
        wsd(20, decay)


def test_the_inverse_square_root_halves_after_three_timescales_and_is_that_of_the_transformer_behind_its_warmup():
    updates = np.array([0, 300, 9_999_900])
    np.testing.assert_allclose(factors(inverse_sqrt(100), updates), [1, 1 / 2, 1 / np.sqrt(1e5)], rtol=1e-5)
    warmed = factors(with_warmup(inverse_sqrt(10), 10))
    np.testing.assert_allclose(warmed[10:], UPDATES[10:] ** -0.5 / 10**-0.5, rtol=1e-5)
    with pytest.raises(ValueError, match="timescale=0"):
        inverse_sqrt(0)


def test_a_warmup_rises_to_the_peak_and_then_the_schedule_begins():
    warmed = factors(with_warmup(linear(20), 4))
    np.testing.assert_allclose(warmed[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(warmed[4:], factors(linear(20))[:26], rtol=1e-6)


SCHEDULES = {
    "constant": lambda num_steps: constant(),
    "cosine": cosine,
    "linear": linear,
    "wsd": wsd,
    "inverse_sqrt": lambda num_steps: inverse_sqrt(),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("num_steps", [1, 2, 29])
def test_every_schedule_begins_at_its_peak_never_rises_and_makes_each_update_of_the_run_above_zero(name, num_steps):
    values = factors(SCHEDULES[name](num_steps))
    assert values.dtype == np.float32
    assert values[0] == 1.0
    assert (np.diff(values) <= 1e-6).all()
    assert (values[:num_steps] > 0).all()
