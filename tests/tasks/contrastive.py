"""Somebody else's project: two towers learn to tell which text belongs to which image, in one file."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import Mean, Output


class Tower(nn.Module):
    width: int
    embed: int = 8

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.embed)(nn.tanh(nn.Dense(self.width)(x)))
        return x * jax.lax.rsqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6)  # the norm has no slope at 0


class Pairs:
    """Two noisy views of one hidden vector each. Every fifth example is broken, and says so in its mask."""

    def __init__(self, num_pairs: int, noise: float = 0.1, seed: int = 0):
        rng = np.random.default_rng(seed + 1)
        hidden, views = rng.normal(size=(num_pairs, 4)), np.random.default_rng(0).normal(size=(2, 4, 6))
        pairs = np.tanh(hidden @ views) + noise * rng.normal(size=(2, num_pairs, 6))
        pairs[:, ::5] = np.nan
        self.image, self.text = pairs.astype(np.float32)

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return {"image": self.image[i], "text": self.text[i], "mask": np.array(i % 5 != 0)}


@dataclasses.dataclass(frozen=True)
class Contrastive:
    """Each image finds its text among all of the batch, and back: Radford et al. 2021, figure 3, arXiv:2103.00020."""

    image: Any
    text: Any
    batch_coupled = True

    def init(self, key, batch):
        towers = {name: getattr(self, name).init(key, batch[name])["params"] for name in ("image", "text")}
        return {**towers, "scale": jnp.asarray(2.0)}, {}

    def predict(self, params, model_state, batch):
        shown = {name: jnp.where(batch["mask"][:, None], batch[name], 0.0) for name in ("image", "text")}
        image, text = (getattr(self, name).apply({"params": params[name]}, x) for name, x in shown.items())
        return jnp.exp(params["scale"]) * image @ text.T

    def loss(self, params, model_state, batch, key, train):
        mask, logits = batch["mask"], self.predict(params, model_state, batch)
        logits = jnp.where(mask[:, None] & mask, logits, -1e9)  # a broken example is nobody's candidate
        losses = -sum(jnp.diagonal(jax.nn.log_softmax(logits, axis)) for axis in (0, 1)) / 2
        right = jnp.argmax(logits, axis=1) == jnp.arange(len(mask))
        return Output(Mean.of(losses, mask), {"accuracy": Mean.of(right, mask)}, model_state)
