"""States that the checkpoint tests save, and their comparison bit by bit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A bit of everything that a training state may hold."""

    step: Any
    params: Any
    model_state: Any
    opt_state: Any
    ema: Any
    key: Any
    keys: Any
    flags: Any


def make_state(seed: int = 0, width: int = 16) -> State:
    """Random values everywhere, also in the moments of the optimizer. `width` is a multiple of 8."""
    rng = np.random.default_rng(seed)
    params = {
        "dense.0": {"kernel": jnp.asarray(rng.normal(size=(width, 24)), jnp.float32)},
        "dense": {"0": {"kernel": jnp.asarray(rng.normal(size=(8, width)), jnp.bfloat16)}},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    grads = jax.tree.map(jnp.sin, params)
    _, opt_state = optimizer.update(grads, optimizer.init(params), params)
    return State(
        step=jnp.asarray(2**24 + 1, jnp.int32),  # no float32 holds it
        params=params,
        model_state={},
        opt_state=opt_state,
        ema=None,
        key=jax.random.key(seed),
        keys=(jax.random.split(jax.random.key(seed), 8), jax.random.key(seed, impl="rbg")),
        flags=[jnp.array([True, False, True]), jnp.zeros((0, 3), jnp.float16)],
    )


def abstract(state: Any, sharding_of: Any = lambda leaf: leaf.sharding) -> Any:
    """Describe a state, each leaf with the sharding that `sharding_of(leaf)` gives."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding_of(x)), state)


def bits(leaf: Any) -> tuple[Any, ...]:
    """Shape, dtype and bytes of an array, also of a key."""
    data = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return leaf.shape, str(leaf.dtype), np.asarray(data).tobytes()


def assert_bit_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert bits(got) == bits(want)
