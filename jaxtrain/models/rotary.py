"""Rotary position embeddings: turn queries and keys by an angle that grows with their position."""

import jax
import jax.numpy as jnp


def rotary_angles(seq: int, head_dim: int, base: float) -> jax.Array:
    """Give the angle of every (position, pair of features): [seq, head_dim / 2] float32.

    angle[t, i] = t * base ** (-2 i / head_dim), RoFormer, section 3.2.2 (https://arxiv.org/abs/2104.09864).
    """
    frequencies = base ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    return jnp.arange(seq, dtype=jnp.float32)[:, None] * frequencies


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turn each pair (x[i], x[i + head_dim / 2]) of `x` [batch, seq, heads, head_dim] by its angle.

    angles: [seq, head_dim / 2], or [batch, seq, head_dim / 2] where each row has positions of its own.

    The dot product of two rotated vectors depends on their distance only. Computed in float32 (bfloat16 cannot tell
    position 256 from 257), returned in the dtype of `x`.
    """
    cos, sin = jnp.cos(angles)[..., None, :], jnp.sin(angles)[..., None, :]  # [..., seq, 1, head_dim / 2]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
