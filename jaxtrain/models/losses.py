"""Losses per position: float32, unmasked and unreduced, so that whoever sums them decides what counts."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, targets: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """Give -log softmax(logits)[target] in nats: [batch, seq] float32.

    logits: [batch, seq, vocab], any floating dtype. targets: [batch, seq] integers. One outside the vocabulary gives
    NaN, which a mask hides and a sum does not. smoothing: the share of each target that is spread evenly over the
    vocabulary (Szegedy et al. 2015, section 7, https://arxiv.org/abs/1512.00567).
    """
    logits = logits.astype(jnp.float32)
    vocab = logits.shape[-1]
    # Comparing with an iota instead of gathering keeps the backward pass free of a scatter into [batch, seq, vocab],
    # and fuses with the softmax also where the vocab dim is sharded.
    at_target = jnp.arange(vocab) == targets[..., None]
    # Taking the largest logit off first keeps the difference exact where all logits are large.
    logits -= jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    expected = jnp.sum(jnp.where(at_target, logits, 0), axis=-1)  # logit under the distribution of targets
    if smoothing:
        expected = (1 - smoothing) * expected + smoothing * jnp.mean(logits, axis=-1)
    losses = jnp.log(jnp.sum(jnp.exp(logits), axis=-1)) - expected
    return jnp.where((targets >= 0) & (targets < vocab), losses, jnp.nan)


def chunked_cross_entropy(
    features: jax.Array, head: Callable[[jax.Array], jax.Array], targets: jax.Array, num_chunks: int
) -> jax.Array:
    """Give cross_entropy(head(features), targets) without ever holding [batch, seq, vocab].

    features: [batch, seq, embed]. head: [batch, any seq, embed] -> [batch, same seq, vocab], position by position; the
    parameters it closes over receive their gradients. targets: [batch, seq]. The logits exist for seq / num_chunks
    positions at a time and are computed again in the backward pass: one more matrix product for the memory. A chunk has
    positions from all over seq, so that each device has its part of every one where seq is split.
    """
    batch, seq = targets.shape
    chunk = -(-seq // num_chunks)
    padding = chunk * num_chunks - seq

    def split(x: jax.Array) -> jax.Array:
        """[batch, seq, ...] -> [num_chunks, batch, chunk, ...]; neighbours in seq are in different chunks."""
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, chunk, num_chunks, *x.shape[2:]), 2, 0)

    # The loop keeps XLA from merging the second computation with the first, so prevent_cse would only cost fusions.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def losses_of(features: jax.Array, targets: jax.Array) -> jax.Array:
        return cross_entropy(head(features), targets)

    losses = jax.lax.map(lambda chunk: losses_of(*chunk), (split(features), split(targets)))
    return jnp.moveaxis(losses, 0, 2).reshape(batch, -1)[:, :seq]
