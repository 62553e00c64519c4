"""The optimizer chain and the learning rate's schedule.

A schedule is a function: number of updates made -> factor of `optimizer.learning_rate`, 0 to 1. Every schedule is
preceded by a linear warmup of w = `schedule.warmup` updates, 1 / (w + 1) to w / (w + 1), so that none is at rate 0.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from jaxtrain.build import build, import_target, signature
from jaxtrain.build.targets import REQUIRED
from jaxtrain.config import Config, schema
from jaxtrain.errors import ConfigError, Problem
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


def with_warmup(schedule: Schedule, warmup_steps: int) -> Schedule:
    """Rise linearly over `warmup_steps` updates, then follow `schedule` from its start."""
    if warmup_steps == 0:
        return schedule

    def warmed(updates: Array) -> Array:
        rising = (updates + 1) / (warmup_steps + 1)
        return jnp.where(updates < warmup_steps, rising, schedule(jnp.maximum(updates - warmup_steps, 0)))

    return warmed


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """transformation: what the step applies.   learning_rate: updates made -> rate of the next one, float32."""

    transformation: optax.GradientTransformation
    learning_rate: Callable[[Array], Array]


def make_optimizer(config: Config, num_steps: int | None, warmup_steps: int) -> Optimizer:
    """Build the optimizer that `config` describes for a run of `num_steps` (None: its length is a time).

    Clipping, where asked for, comes first and sees the whole batch's gradient. Raises ConfigError.
    """
    if num_steps is not None and warmup_steps >= num_steps:
        raise ConfigError(
            [
                Problem(
                    "schedule.warmup",
                    config.schedule.warmup,
                    f"a warmup of {warmup_steps} steps never ends in a run of {num_steps}, so the rate never peaks",
                    f'Use at most "{num_steps - 1} steps".' if num_steps > 1 else 'Use "" (none).',
                )
            ]
        )
    runtime = {} if num_steps is None else {"num_steps": num_steps - warmup_steps}
    if num_steps is None and _asks_for_num_steps(config.schedule):
        raise ConfigError(
            [
                Problem(
                    "schedule.type",
                    config.schedule.type,
                    f"it needs to know the number of steps, but --config.duration={config.duration} is a time",
                    "Say it with --config.schedule.num_steps=N, or use the constant schedule.",
                )
            ]
        )
    schedule = build(config.schedule, "schedule", **runtime)
    _refuse_zero_schedule(schedule, config)  # before a warmup hides its start
    schedule = with_warmup(schedule, warmup_steps)
    peak = config.optimizer.learning_rate

    def learning_rate(updates: Array) -> Array:
        return jnp.asarray(peak * schedule(updates), jnp.float32)

    transformation: Any = build(config.optimizer, "optimizer", learning_rate=learning_rate)
    if config.clip_norm:
        transformation = optax.chain(optax.clip_by_global_norm(config.clip_norm), transformation)
    return Optimizer(optax.with_extra_args_support(transformation), learning_rate)


def _asks_for_num_steps(spec: schema.Schedule) -> bool:
    if not isinstance(spec.type, str) or "num_steps" in spec.options:
        return False
    option = signature(import_target(spec.type, "schedule")).options.get("num_steps")
    return option is not None and option.default is REQUIRED


def _refuse_zero_schedule(schedule: Schedule, config: Config) -> None:
    """Refuse a schedule that starts at 0 and stays there, as some of optax's do with 0 transition steps."""
    start = [float(schedule(jnp.array(updates, jnp.int32))) for updates in (0, 1, 2)]
    if not all(math.isfinite(factor) for factor in start) or max(start) <= 0.0:
        raise ConfigError(
            [
                Problem(
                    "schedule.type",
                    config.schedule.type,
                    f"its first factors are {start}; it must be finite and above 0 within the first 3 updates",
                    'Leave the warmup to --config.schedule.warmup="N steps".',
                )
            ]
        )


def sgd(
    learning_rate: Any, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0, mask: Any = None
) -> optax.GradientTransformation:
    """Descend along gradient + weight_decay * parameter, with momentum: the L2 penalty is part of the gradient.

    `optax.sgd` has no decay, and that of `optax.adamw` is added after the momentum. mask: which parameters decay, as a
    tree of bools or a function of the parameters; None: all.
    """
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask), optax.sgd(learning_rate, momentum or None, nesterov)
    )
