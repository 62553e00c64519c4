"""Models as a user has them: Flax or plain JAX alone, nothing of jaxtrain."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

DROPOUT = 0.25
CLASSES = 4


class LinenNet(nn.Module):
    """Batch statistics, dropout and a collection of its own."""

    width: int = 16

    @nn.compact
    def __call__(self, x, train=False):
        seen = self.variable("usage", "examples", lambda: jnp.zeros((), jnp.int32))
        if train:
            seen.value = seen.value + x.shape[0]
        x = nn.Dense(self.width, use_bias=False)(x)  # batch statistics would take a bias away
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dropout(DROPOUT)(x, deterministic=not train)
        return nn.Dense(CLASSES)(x)


class Seen(nnx.Variable):
    """A Variable type that Flax does not know."""


class NnxNet(nnx.Module):
    """Batch statistics, two dropouts, one layer under two names, and a Variable type of its own."""

    def __init__(self, inputs: int, width: int = 16, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(inputs, width, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.up = self.down = nnx.Linear(width, width, rngs=rngs)
        self.dropouts = nnx.List([nnx.Dropout(DROPOUT, rngs=rngs) for _ in range(2)])
        self.last = nnx.Linear(width, CLASSES, rngs=rngs)
        self.examples = Seen(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        if not self.norm.use_running_average:
            self.examples.set_value(self.examples.get_value() + x.shape[0])
        x = nnx.relu(self.norm(self.first(x)))
        x = self.dropouts[0](jnp.tanh(self.up(x)))
        x = self.dropouts[1](jnp.tanh(self.down(x)))
        return self.last(x)


def pair_init(key, x):
    first, second = jax.random.split(key)
    params = {
        "first": jax.random.normal(first, (x.shape[-1], 16)) / 3,
        "last": jax.random.normal(second, (16, CLASSES)) / 4,
    }
    return params, {"mean": jnp.zeros(16)}


def pair_apply(params, model_state, x, key, train):
    x = x @ params["first"]
    mean = x.mean(0) if train else model_state["mean"]
    x = jnp.tanh(x - mean)
    if train:
        x = jnp.where(jax.random.bernoulli(key, 1 - DROPOUT, x.shape), x / (1 - DROPOUT), 0.0)
        model_state = {"mean": 0.9 * model_state["mean"] + 0.1 * mean}
    return x @ params["last"], model_state
