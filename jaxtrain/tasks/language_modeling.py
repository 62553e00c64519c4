"""Next-token prediction."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxtrain.metrics import Mean, Perplexity
from jaxtrain.models.losses import chunked_cross_entropy, cross_entropy
from jaxtrain.tasks.adapters import as_model
from jaxtrain.tasks.task import Output
from jaxtrain.typing import Array, Batch, ModelState, Params


@dataclasses.dataclass(frozen=True)
class LanguageModeling:
    """Predict each token from those before it.

    batch["tokens"]: [batch, seq + 1] int32; the first `seq` are inputs, the last `seq` targets.
    batch["mask"]: [batch, seq] or [batch] bool; which targets count.
    The loss is in nats per counted token. Evaluation lines also hold `perplexity`, exp of it.

    model: any model that maps tokens [batch, seq] to logits [batch, seq, vocab].
    loss_chunks: compute logits and loss in so many slices of seq, never holding [batch, seq, vocab]; the model then
        needs the methods `features(tokens, train)` and `head(features)`. 0: all at once.
    """

    model: Any
    loss_chunks: int = 0

    def init(self, key: Array, batch: Batch) -> tuple[Params, ModelState]:
        return as_model(self.model).init(key, batch["tokens"][:, :-1])

    def loss(self, params: Params, model_state: ModelState, batch: Batch, key: Array, train: bool) -> Output:
        model = as_model(self.model)
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        if self.loss_chunks:
            features, model_state = model.apply(params, model_state, inputs, key, train, method="features")

            def head(features: Array) -> Array:
                return model.apply(params, model_state, features, key, train, method="head")[0]

            losses = chunked_cross_entropy(features, head, targets, self.loss_chunks)
        else:
            logits, model_state = model.apply(params, model_state, inputs, key, train)
            losses = cross_entropy(logits, targets)
        mask = batch["mask"]
        mask = jnp.broadcast_to(mask[:, None] if mask.ndim == 1 else mask, targets.shape)
        loss = Mean.of(losses, mask)
        metrics = {} if train else {"perplexity": Perplexity(loss.total, loss.weight)}
        return Output(loss, metrics, model_state)

    def predict(self, params: Params, model_state: ModelState, batch: Batch) -> Array:
        """Give logits [batch, seq, vocab]."""
        return as_model(self.model).apply(params, model_state, batch["tokens"][:, :-1], None, False)[0]

    def tokens_per_example(self, batch: Batch) -> int:
        """Number of targets in one example, padding included. From shapes alone."""
        return batch["tokens"].shape[-1] - 1
