"""The losses, against their definition in float64 and against each other."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.config import Mesh
from jaxtrain.models.losses import chunked_cross_entropy, cross_entropy
from jaxtrain.sharding import make_mesh
from tests.models.jaxprs import largest_array

BATCH, SEQ, EMBED, VOCAB = 2, 12, 8, 50


def make_case(dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    features = jax.random.normal(keys[0], (BATCH, SEQ, EMBED), dtype)
    kernel = jax.random.normal(keys[1], (EMBED, VOCAB), dtype)
    targets = jax.random.randint(keys[2], (BATCH, SEQ), 0, VOCAB)
    weights = jax.random.uniform(keys[3], (BATCH, SEQ))
    return features, kernel, targets, weights


def plain(features, kernel, targets):
    return cross_entropy(features @ kernel, targets)


def chunked(features, kernel, targets, num_chunks=4):
    return chunked_cross_entropy(features, lambda chunk: chunk @ kernel, targets, num_chunks)


def gradients(losses, features, kernel, targets, weights):
    def total(features, kernel):
        return jnp.sum(losses(features, kernel, targets) * weights)

    return jax.jit(jax.grad(total, argnums=(0, 1)))(features, kernel)


def distance(a, b):
    return np.linalg.norm(np.asarray(a - b, np.float64)) / np.linalg.norm(np.asarray(b, np.float64))


def test_cross_entropy_is_the_negative_log_probability_of_the_target():
    logits = np.random.default_rng(0).normal(size=(BATCH, SEQ, VOCAB)) * 10
    targets = np.random.default_rng(1).integers(0, VOCAB, (BATCH, SEQ))
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(probabilities, targets[..., None], -1)[..., 0])
    np.testing.assert_allclose(cross_entropy(logits, targets), expected, rtol=1e-5)


def test_cross_entropy_of_equal_logits_is_the_log_of_the_vocabulary():
    np.testing.assert_allclose(cross_entropy(jnp.full((1, 1, VOCAB), 1e4), jnp.array([[3]])), np.log(VOCAB), rtol=1e-6)


def test_bfloat16_logits_give_a_float32_loss_computed_in_float32():
    logits = jax.random.normal(jax.random.key(0), (BATCH, SEQ, VOCAB), jnp.bfloat16)
    targets = jnp.zeros((BATCH, SEQ), jnp.int32)
    losses = cross_entropy(logits, targets)
    assert losses.dtype == jnp.float32
    np.testing.assert_array_equal(losses, cross_entropy(logits.astype(jnp.float32), targets))


def test_a_target_outside_the_vocabulary_gives_nan_unless_it_is_masked():
    logits = jnp.ones((1, 3, VOCAB))
    losses = cross_entropy(logits, jnp.array([[0, VOCAB, -1]]))
    np.testing.assert_array_equal(jnp.isnan(losses), [[False, True, True]])

    def masked(logits):
        losses = cross_entropy(logits, jnp.array([[0, VOCAB, -1]]))
        return jnp.sum(jnp.where(jnp.array([[True, False, False]]), losses, 0))

    assert jnp.all(jnp.isfinite(jax.grad(masked)(logits)))


@pytest.mark.parametrize("num_chunks", [1, 5, 20])
def test_chunked_loss_equals_the_plain_one_also_where_chunks_do_not_divide_seq(num_chunks):
    features, kernel, targets, _ = make_case()
    np.testing.assert_allclose(
        chunked(features, kernel, targets, num_chunks), plain(features, kernel, targets), rtol=1e-5
    )


def test_chunked_gradients_equal_the_plain_ones_also_of_the_head():
    case = make_case()
    actual = gradients(lambda *args: chunked(*args, num_chunks=5), *case)
    for a, b in zip(actual, gradients(plain, *case), strict=True):
        assert distance(a, b) < 1e-6


def test_chunked_bfloat16_gradients_are_as_close_to_float32_as_the_plain_ones():
    *exact, targets, weights = make_case()
    rounded = [x.astype(jnp.bfloat16) for x in exact]
    exact = [x.astype(jnp.float32) for x in rounded]
    reference = gradients(plain, *exact, targets, weights)
    for a, b, r in zip(
        gradients(lambda *args: chunked(*args, SEQ), *rounded, targets, weights),
        gradients(plain, *rounded, targets, weights),
        reference,
        strict=True,
    ):
        assert a.dtype == jnp.bfloat16
        assert distance(a, r) < 2 * distance(b, r)


def test_chunked_loss_never_holds_logits_of_all_positions():
    case = make_case()
    whole = BATCH * SEQ * VOCAB
    assert largest_array(lambda *args: gradients(chunked, *args), *case) < whole
    assert largest_array(lambda f, k, t, w: chunked(f, k, t), *case) < whole
    # The same measure sees the logits where they are.
    assert largest_array(lambda *args: gradients(plain, *args), *case) >= whole
    assert largest_array(lambda f, k, t, w: plain(f, k, t), *case) >= whole


def test_smoothing_is_the_cross_entropy_with_smoothed_targets():
    logits = np.random.default_rng(0).normal(0, 3, (4, 5)).astype(np.float32)
    targets = np.array([0, 4, 2, 2])
    spread = 0.9 * np.eye(5)[targets] + 0.1 / 5
    expected = -(spread * np.asarray(jax.nn.log_softmax(logits))).sum(-1)
    np.testing.assert_allclose(cross_entropy(logits, targets, 0.1), expected, rtol=1e-5)
    np.testing.assert_array_equal(cross_entropy(logits, targets, 0.0), cross_entropy(logits, targets))
    assert np.isnan(cross_entropy(logits[:1], np.array([5]), 0.1)).all()


def test_chunks_of_a_split_sequence_and_a_split_vocabulary_gather_neither():
    mesh = make_mesh(Mesh(data=1, sequence=2, tensor=4))

    def placed(shape, dtype, *axes):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    features, targets = placed((2, 16, 8), jnp.float32, None, "sequence"), placed((2, 16), jnp.int32, None, "sequence")
    kernel = placed((8, 64), jnp.float32, None, "tensor")
    text = jax.jit(chunked).lower(features, kernel, targets).compile().as_text()
    assert not re.search("all-gather|all-to-all|collective-permute", text)
    assert "all-reduce" in text  # of the largest logit and the sum, over the vocabulary
