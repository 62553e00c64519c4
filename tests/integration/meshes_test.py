"""Twenty steps of a whole run's programs give the same numbers from the same examples on every mesh."""

import functools

import jax
import numpy as np
import pytest

from tests.meshes import BATCH, MESHES, MODELS, STEPS, experiment_of, train

ENGINES = {"llama": "multisteps", "gpt2": "fused"}


@functools.cache
def trained(mesh, model):
    return train(experiment_of(MESHES[mesh], MODELS[model], accumulation={"engine": ENGINES[model]}))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mesh", [name for name in MESHES if name != "one device"])
def test_twenty_steps_give_the_same_losses_and_parameters_from_the_same_examples(mesh, model):
    losses, positions, state = trained(mesh, model)
    expected_losses, expected_positions, expected = trained("one device", model)
    np.testing.assert_array_equal(positions, expected_positions)
    assert len(np.unique(positions)) == 4 * BATCH
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert len(set(losses)) == STEPS
    for (path, a), b in zip(jax.tree.leaves_with_path(state.params), jax.tree.leaves(expected.params), strict=True):
        a, b, name = np.asarray(a), np.asarray(b), jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("key/bias"):  # moves all scores of a query alike: its gradient is rounding of zero
            assert np.max(np.abs([a, b])) <= 1e-6
        else:
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b), name
