"""Metrics that merge exactly: a metric stays a sum until it is written.

A metric is any frozen dataclass, registered as a JAX pytree, with two methods: `merge(other)` gives the metric of both
sets of examples, `compute()` gives the number (or a dict of numbers). Merging must not depend on the order.

What a classifier can be measured by is a function `measure(logits, labels, mask) -> metric`, with logits
[batch, num_classes], labels [batch] int and mask [batch]; `top_k`, `f1` and `confusion_matrix` make some.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, Protocol, Self

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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Perplexity:
    """exp of the mean loss in nats: merged as the mean is, so that parts of any size give that of the whole.

    total, weight: as those of `Mean`.
    """

    total: Any
    weight: Any

    @classmethod
    def of(cls, losses: jax.Array, mask: jax.Array) -> "Perplexity":
        """losses, mask: [...], as for `Mean.of`."""
        mean = Mean.of(losses, mask)
        return cls(mean.total, mean.weight)

    def merge(self, other: "Perplexity") -> "Perplexity":
        return Perplexity(self.total + other.total, self.weight + other.weight)

    def compute(self) -> Any:
        """1 when nothing was counted; infinite beyond the largest number."""
        xp = jnp if isinstance(self.weight, jax.Array) else np
        with np.errstate(over="ignore"):
            return xp.exp(Mean(self.total, self.weight).compute())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class F1:
    """2 true_positives / (predicted + actual) of each class, averaged.

    true_positives, predicted, actual: [num_classes] int32; examples rightly taken for a class, taken for it, of it.
    average: "macro", the mean over the classes that occur among labels or predictions; "binary", class 1 alone.
    """

    true_positives: Any
    predicted: Any
    actual: Any
    average: str = dataclasses.field(default="macro", metadata={"static": True})

    def merge(self, other: "F1") -> "F1":
        return F1(
            self.true_positives + other.true_positives,
            self.predicted + other.predicted,
            self.actual + other.actual,
            self.average,
        )

    def compute(self) -> Any:
        """0 when nothing was counted."""
        xp = jnp if isinstance(self.actual, jax.Array) else np
        either = self.predicted + self.actual
        scores = 2 * self.true_positives / xp.maximum(either, 1)
        if self.average == "binary":
            return scores[1]
        return xp.sum(scores) / xp.maximum(xp.sum(either > 0), 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ConfusionMatrix:
    """counts: [num_classes, num_classes] int32, examples by their label (dim 0) and what they were taken for (dim 1).

    A line of metrics.jsonl holds numbers alone, so each cell is one: `<name>_<label>_<predicted>`.
    """

    counts: Any

    def merge(self, other: "ConfusionMatrix") -> "ConfusionMatrix":
        return ConfusionMatrix(self.counts + other.counts)

    def compute(self) -> dict[str, Any]:
        size = range(self.counts.shape[0])
        return {f"{label}_{predicted}": self.counts[label, predicted] for label in size for predicted in size}


Measure = Callable[[jax.Array, jax.Array, jax.Array], Any]

# A line with more cells than those of so many classes is no line that anyone reads.
MAX_CONFUSION_CLASSES = 32


def top_k(k: int) -> Measure:
    """Measure how often the label is among the `k` largest logits: a `Mean`. Of equal logits the first is larger."""
    return functools.partial(_top_k, k)


def f1(average: Literal["macro", "binary"] = "macro") -> Measure:
    """Measure `F1`. "binary" needs two classes. Every counted example counts whole, whatever its weight."""
    if average not in ("macro", "binary"):
        raise ValueError(f'f1 has no average={average!r}. Use "macro" or "binary".')
    return functools.partial(_f1, average)


def confusion_matrix() -> Measure:
    """Measure a `ConfusionMatrix` of at most 32 classes. Every counted example counts whole, whatever its weight."""
    return _confusion_matrix


def _top_k(k: int, logits: jax.Array, labels: jax.Array, mask: jax.Array) -> Mean:
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"top_k needs k from 1 to the number of classes, which is {logits.shape[-1]}, not {k}.")
    _, largest = jax.lax.top_k(logits, k)
    return Mean.of(jnp.any(largest == labels[:, None], axis=-1), mask)


def _f1(average: str, logits: jax.Array, labels: jax.Array, mask: jax.Array) -> F1:
    num_classes = logits.shape[-1]
    if average == "binary" and num_classes != 2:
        raise ValueError(f'f1 with average="binary" needs 2 classes, and the logits have {num_classes}. Use "macro".')
    predicted = jnp.argmax(logits, axis=-1)

    def count(classes: jax.Array, counted: jax.Array) -> jax.Array:
        return jnp.zeros(num_classes, jnp.int32).at[classes].add((counted > 0).astype(jnp.int32))

    right = jnp.where(predicted == labels, mask, 0)
    return F1(count(labels, right), count(predicted, mask), count(labels, mask), average)


def _confusion_matrix(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> ConfusionMatrix:
    num_classes = logits.shape[-1]
    if num_classes > MAX_CONFUSION_CLASSES:
        raise ValueError(
            f"A confusion matrix of {num_classes} classes has {num_classes**2} cells, each of them a number of every "
            f"line. Use it for at most {MAX_CONFUSION_CLASSES} classes."
        )
    cells = jnp.zeros((num_classes, num_classes), jnp.int32)
    return ConfusionMatrix(cells.at[labels, jnp.argmax(logits, axis=-1)].add((mask > 0).astype(jnp.int32)))
