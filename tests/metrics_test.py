"""Means stay sums until they are written."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.metrics import Mean


def test_a_mean_over_parts_of_any_size_is_the_mean_over_all():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=24).astype(np.float32), rng.random(24).astype(np.float32)
    parts = [Mean.of(v, w) for v, w in zip(np.split(values, [3, 4, 20]), np.split(weights, [3, 4, 20]), strict=True)]
    for order in (parts, parts[::-1]):
        merged = functools.reduce(Mean.merge, order)
        np.testing.assert_allclose(merged.compute(), np.average(values, weights=weights), rtol=1e-5)
    mean_of_means = np.mean([part.compute() for part in parts])
    assert abs(mean_of_means - np.average(values, weights=weights)) > 0.01


def test_what_is_masked_may_be_anything():
    mean = Mean.of(jnp.array([1.0, jnp.nan, jnp.inf, 3.0]), jnp.array([True, False, False, True]))
    assert (float(mean.total), float(mean.weight), float(mean.compute())) == (4.0, 2.0, 2.0)
    gradient = jax.grad(lambda x: Mean.of(x, jnp.array([True, False])).total)(jnp.array([2.0, jnp.nan]))
    np.testing.assert_array_equal(gradient, [1.0, 0.0])


@pytest.mark.parametrize("xp", [np, jnp])
def test_the_mean_of_nothing_is_zero_and_warns_of_nothing(xp):
    with np.errstate(all="raise"):
        assert float(Mean(xp.zeros(()), xp.zeros(())).compute()) == 0.0


def test_values_of_16_bits_are_summed_in_float32():
    ones = jnp.ones(1000, jnp.bfloat16)
    mean = Mean.of(ones, jnp.ones(1000, bool))
    assert (mean.total.dtype, mean.weight.dtype) == (jnp.float32, jnp.float32)
    assert float(mean.total) == 1000.0  # bfloat16 has no 1000 between 992 and 1008, and adding ones stalls at 256


def test_host_totals_keep_their_precision():
    mean = Mean(np.float64(2**24), np.float64(1)).merge(Mean(np.float64(1), np.float64(0)))
    assert mean.compute() == 2**24 + 1


def test_a_mean_passes_through_jit():
    merged = jax.jit(lambda a, b: a.merge(b))(Mean(jnp.ones(()), jnp.ones(())), Mean(jnp.ones(()), jnp.zeros(())))
    assert float(merged.compute()) == 2.0
