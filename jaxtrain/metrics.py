"""Metrics that merge exactly: a metric stays a sum until it is written.

A metric is any frozen dataclass, registered as a JAX pytree, with two methods: `merge(other)` gives the metric of both
sets of examples, `compute()` gives the number (or a dict of numbers). Merging must not depend on the order.
"""

import dataclasses
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np


class Metric(Protocol):
    """What `metrics` of a task's `Output` hold."""

    def merge(self, other: Self) -> Self: ...

    def compute(self) -> Any: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
    """A weighted mean, kept as its two sums.

    total: float32 scalar, sum of value * weight.
    weight: float32 scalar, sum of weights; padding has weight 0.
    """

    total: Any
    weight: Any

    @classmethod
    def of(cls, values: jax.Array, mask: jax.Array) -> "Mean":
        """Sum `values` [...] where `mask` [...] (bool or weights, same shape) counts them.

        Masked values may be anything, also NaN. Raises ValueError for two shapes: broadcasting would count wrong.
        """
        weights = jnp.asarray(mask, jnp.float32)
        if jnp.shape(values) != weights.shape:
            shapes = f"values {list(jnp.shape(values))} and mask {list(weights.shape)}"
            raise ValueError(f"{shapes} must have one shape. Reduce the values, or broadcast the mask to them.")
        values = jnp.where(weights > 0, jnp.asarray(values, jnp.float32), 0.0)
        return cls(jnp.sum(values * weights), jnp.sum(weights))

    def merge(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.weight + other.weight)

    def compute(self) -> Any:
        """The mean; 0 when nothing was counted."""
        xp = jnp if isinstance(self.weight, jax.Array) else np
        counted = self.weight > 0
        return xp.where(counted, self.total / xp.where(counted, self.weight, 1), 0 * self.weight)
