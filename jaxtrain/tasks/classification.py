"""Assigning each example one of a fixed number of classes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxtrain.metrics import Mean, Measure
from jaxtrain.models.losses import cross_entropy
from jaxtrain.tasks.adapters import as_model
from jaxtrain.tasks.task import Output
from jaxtrain.typing import Array, Batch, ModelState, Params


@dataclasses.dataclass(frozen=True)
class Classification:
    """Cross-entropy and accuracy over examples, and in evaluations whatever else they are measured by.

    batch[inputs]: [batch, ...].   batch[labels]: [batch] int.   batch["mask"]: [batch] bool.

    model: any model that maps inputs to logits [batch, num_classes].
    inputs, labels: the names of the two arrays.
    label_smoothing: share of each label spread evenly over the classes, in training only.
    metrics: name -> `measure(logits, labels, mask) -> metric`, as those of metrics.py: {"top5": top_k(5)}, in a config
        {"top5": {"type": "jaxtrain.metrics:top_k", "k": 5}}. Evaluation lines hold them, train lines do not.
    """

    model: Any
    inputs: str = "image"
    labels: str = "label"
    label_smoothing: float = 0.0
    metrics: Mapping[str, Measure] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be from 0 to below 1.")
        clash = sorted({"accuracy", "loss"} & self.metrics.keys())
        if clash:
            raise ValueError(f"Classification has its own {clash[0]}. Give its metrics.{clash[0]} another name.")

    def init(self, key: Array, batch: Batch) -> tuple[Params, ModelState]:
        return as_model(self.model).init(key, batch[self.inputs])

    def loss(self, params: Params, model_state: ModelState, batch: Batch, key: Array, train: bool) -> Output:
        logits, model_state = as_model(self.model).apply(params, model_state, batch[self.inputs], key, train)
        labels, mask = batch[self.labels], batch["mask"]
        losses = cross_entropy(logits, labels, self.label_smoothing if train else 0.0)
        metrics = {"accuracy": Mean.of(jnp.argmax(logits, axis=-1) == labels, mask)}
        if not train:
            metrics |= {name: measure(logits, labels, mask) for name, measure in self.metrics.items()}
        return Output(Mean.of(losses, mask), metrics, model_state)

    def predict(self, params: Params, model_state: ModelState, batch: Batch) -> Array:
        """Give logits [batch, num_classes]."""
        return as_model(self.model).apply(params, model_state, batch[self.inputs], None, False)[0]
