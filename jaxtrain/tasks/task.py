"""The Task protocol: all that the training step knows of a model and its loss."""

import dataclasses
from typing import Any, Protocol

import jax

from jaxtrain.metrics import Mean
from jaxtrain.typing import Array, Batch, ModelState, Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """What a task makes of one batch.

    loss: total and weight over the batch; gradients are taken of the total and divided by the weight of all
    microbatches, devices and processes.
    metrics: name -> anything with merge and compute (see metrics.py); differentiated by nobody.
    model_state: the model's non-parameter collections after the batch, of the same structure as before.
    """

    loss: Mean
    metrics: dict[str, Any]
    model_state: ModelState


class Task(Protocol):
    """A frozen dataclass with these methods. All arrays of `batch` are [batch, ...]; "mask" is among them.

    Padding rows have mask False and must not count in the loss, the metrics or their weights. A task whose loss is no
    sum over examples, as one that contrasts them, has an attribute `batch_coupled = True` (docs/accumulation.md).
    """

    def init(self, key: Array, batch: Batch) -> tuple[Params, ModelState]:
        """Make the float32 parameters and the model state for batches of these shapes.

        Parameters may be in Flax's boxes (`nn.Partitioned`), which say how they are sharded; `loss` gets them without.
        """
        ...

    def loss(self, params: Params, model_state: ModelState, batch: Batch, key: Array, train: bool) -> Output:
        """Compute the loss. `key` is a function of (seed, step, microbatch) alone."""
        ...

    def predict(self, params: Params, model_state: ModelState, batch: Batch) -> Any:
        """Compute the model's outputs, without randomness."""
        ...
