"""Predicting numbers."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxtrain.metrics import Mean
from jaxtrain.tasks.adapters import as_model
from jaxtrain.tasks.task import Output
from jaxtrain.typing import Array, Batch, ModelState, Params


@dataclasses.dataclass(frozen=True)
class Regression:
    """Squared and absolute error over examples; an example with several targets counts with the mean over them.

    batch[inputs]: [batch, ...].   batch[targets]: [batch, ...] float.   batch["mask"]: [batch] bool.

    model: any model that maps inputs to predictions of the shape of the targets.
    inputs, targets: the names of the two arrays.
    """

    model: Any
    inputs: str = "input"
    targets: str = "target"

    def init(self, key: Array, batch: Batch) -> tuple[Params, ModelState]:
        return as_model(self.model).init(key, batch[self.inputs])

    def loss(self, params: Params, model_state: ModelState, batch: Batch, key: Array, train: bool) -> Output:
        predictions, model_state = as_model(self.model).apply(params, model_state, batch[self.inputs], key, train)
        targets = batch[self.targets]
        if predictions.shape != targets.shape:  # broadcasting would compare each target with every prediction
            shapes = f"predictions {list(predictions.shape)} and {self.targets!r} {list(targets.shape)}"
            raise ValueError(f"{shapes} must have one shape: change the model's output or the data.")
        error = predictions.astype(jnp.float32) - targets.astype(jnp.float32)
        error = error.reshape(len(error), -1)
        metrics = {"absolute_error": Mean.of(jnp.mean(jnp.abs(error), axis=1), batch["mask"])}
        return Output(Mean.of(jnp.mean(error**2, axis=1), batch["mask"]), metrics, model_state)

    def predict(self, params: Params, model_state: ModelState, batch: Batch) -> Array:
        """Give predictions of the shape of the targets."""
        return as_model(self.model).apply(params, model_state, batch[self.inputs], None, False)[0]
