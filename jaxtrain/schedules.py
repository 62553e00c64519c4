"""Schedules of the learning rate.

A schedule is a function: number of updates made -> factor of `optimizer.learning_rate`, 0 to 1. Every schedule is
preceded by a linear warmup of w = `schedule.warmup` updates, 1 / (w + 1) to w / (w + 1), so that none is at rate 0.
What a schedule counts are the updates after the warmup, and `num_steps` are those that the run then has left.
"""

from collections.abc import Callable

import jax.numpy as jnp

from jaxtrain.typing import Array

Schedule = Callable[[Array], Array]


def constant() -> Schedule:
    """Stay at 1."""
    return lambda updates: jnp.ones_like(updates, jnp.float32)


def cosine(num_steps: int, final: float = 0.0) -> Schedule:
    """Fall from 1 to `final` over `num_steps` along half a cosine (Loshchilov and Hutter, SGDR, section 3, eq. 5)."""

    def schedule(updates: Array) -> Array:
        progress = jnp.clip(updates / num_steps, 0.0, 1.0)
        return final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))

    return schedule


def linear(num_steps: int, final: float = 0.0) -> Schedule:
    """Fall from 1 to `final` over `num_steps` in a straight line."""
    return lambda updates: 1 + (final - 1) * jnp.clip(updates / num_steps, 0.0, 1.0)


def wsd(num_steps: int, decay: float = 0.2, final: float = 0.0) -> Schedule:
    """Warmup, stable, decay: stay at 1, then fall to `final` in a straight line over the last d = decay * num_steps.

        factor = 1 - (1 - final) * clip((updates - (num_steps - d)) / d, 0, 1)

    (Hu et al., MiniCPM, section 4.2, https://arxiv.org/abs/2404.06395; linear as in Hägele et al., section 3,
    https://arxiv.org/abs/2405.18392). decay: share of the steps after the warmup; d is rounded, and at least 1.
    """
    if not 0.0 < decay <= 1.0:
        raise ValueError(f"decay={decay} is no share of the steps; it must be above 0 and at most 1")
    decay_steps = max(round(decay * num_steps), 1)

    def schedule(updates: Array) -> Array:
        progress = jnp.clip((updates - (num_steps - decay_steps)) / decay_steps, 0.0, 1.0)
        return 1 - (1 - final) * progress

    return schedule


def inverse_sqrt(timescale: int = 10_000) -> Schedule:
    """Fall with the inverse square root of the number of updates; needs no length of the run.

        factor = sqrt(timescale / (timescale + updates))

    With `timescale` = the warmup's updates this is that of Vaswani et al., section 5.3, eq. 3
    (https://arxiv.org/abs/1706.03762); 10,000 is that of T5 (https://arxiv.org/abs/1910.10683, section 3.1.2).
    """
    if timescale < 1:
        raise ValueError(f"timescale={timescale} must be 1 or more")
    return lambda updates: jnp.sqrt(timescale / (timescale + updates))


def with_warmup(schedule: Schedule, warmup_steps: int) -> Schedule:
    """Rise linearly over `warmup_steps` updates, then follow `schedule` from its start."""
    if warmup_steps == 0:
        return schedule

    def warmed(updates: Array) -> Array:
        rising = (updates + 1) / (warmup_steps + 1)
        return jnp.where(updates < warmup_steps, rising, schedule(jnp.maximum(updates - warmup_steps, 0)))

    return warmed
