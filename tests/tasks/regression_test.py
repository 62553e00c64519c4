"""Losses and errors of regression by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.tasks.regression import Regression

PLAIN = (lambda key, inputs: ({}, {}), lambda params, model_state, inputs, key, train: (inputs, model_state))
PREDICTIONS = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]], np.float32)
TARGETS = np.array([[1.0, 4.0], [-1.0, 3.0], [0.0, 0.0]], np.float32)


def loss(predictions, targets, mask, **options):
    batch = {"input": predictions, "target": targets, "mask": np.asarray(mask, bool)}
    return Regression(PLAIN, **options).loss({}, {}, batch, jax.random.key(0), True)


def test_errors_are_means_over_the_targets_of_the_counted_examples():
    output = loss(PREDICTIONS, TARGETS, [1, 1, 0])
    np.testing.assert_allclose(output.loss.total, (0 + 4) / 2 + (1 + 9) / 2)
    np.testing.assert_allclose(output.loss.weight, 2)
    np.testing.assert_allclose(output.metrics["absolute_error"].compute(), ((0 + 2) / 2 + (1 + 3) / 2) / 2)


def test_one_number_for_each_example_needs_no_second_dim():
    output = loss(PREDICTIONS[:, 0], TARGETS[:, 0], [1, 1, 1])
    np.testing.assert_allclose(output.loss.compute(), (0 + 1 + 9) / 3)


def test_padding_does_not_change_the_loss_whatever_it_holds():
    nan = np.full((2, 2), np.nan, np.float32)
    padded = loss(np.concatenate([PREDICTIONS, nan]), np.concatenate([TARGETS, nan]), [1, 1, 1, 0, 0])
    whole = loss(PREDICTIONS, TARGETS, [1, 1, 1])
    for one, other in zip(jax.tree.leaves(padded), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)


def test_parts_of_a_batch_add_up_to_it():
    parts = [
        loss(PREDICTIONS[rows], TARGETS[rows], np.ones(len(PREDICTIONS[rows]))) for rows in (slice(1), slice(1, 3))
    ]
    whole = loss(PREDICTIONS, TARGETS, [1, 1, 1])
    np.testing.assert_allclose(parts[0].loss.merge(parts[1].loss).compute(), whole.loss.compute(), rtol=1e-6)


def test_predictions_of_another_shape_are_refused_instead_of_broadcast():
    with pytest.raises(ValueError, match=r"predictions \[3, 1\] and 'target' \[3\] must have one shape"):
        loss(PREDICTIONS[:, :1], TARGETS[:, 0], [1, 1, 1])


def test_the_loss_is_float32_also_of_16_bit_predictions_and_float64_targets():
    output = loss(jnp.asarray(PREDICTIONS, jnp.bfloat16), TARGETS.astype(np.float64), [1, 1, 1])
    assert {leaf.dtype for leaf in jax.tree.leaves(output)} == {jnp.dtype(jnp.float32)}


def test_the_arrays_are_found_by_the_names_given():
    task = Regression(PLAIN, inputs="x", targets="y")
    batch = {"x": PREDICTIONS, "y": TARGETS, "mask": np.ones(3, bool)}
    expected = loss(PREDICTIONS, TARGETS, [1, 1, 1]).loss.compute()
    np.testing.assert_array_equal(task.loss({}, {}, batch, None, False).loss.compute(), expected)
    np.testing.assert_array_equal(task.predict({}, {}, batch), PREDICTIONS)
