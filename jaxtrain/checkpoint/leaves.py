"""A state as a flat dict of named leaves: how it is stored, described and compared."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxtrain.errors import CheckpointError
from jaxtrain.typing import PyTree

_MAX_LISTED = 20  # leaves named in one message; a model of another depth would list thousands


@dataclasses.dataclass(frozen=True)
class Leaf:
    """What a checkpoint says of one array. `dtype` is JAX's name, `key<fry>` for a typed PRNG key."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def named(state: PyTree) -> dict[str, jax.Array]:
    """Flatten a state into `{"params/dense/kernel": leaf}`, in the order of its leaves.

    Orbax joins the keys of a nested tree with dots and overwrites one array with another when a key holds a dot itself,
    so it is only ever given this flat dict, whose names are checked to be distinct.
    """
    paths_and_leaves = jax.tree_util.tree_leaves_with_path(state)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths_and_leaves]
    if len(set(names)) < len(names):  # a key holds "/": spell every path so that no two can be equal
        names = [jax.tree_util.keystr(path) for path, _ in paths_and_leaves]
    return {name: leaf for name, (_, leaf) in zip(names, paths_and_leaves, strict=True)}


def stored(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Drop leaves without elements, which Orbax refuses: shape and dtype, in the manifest, say all of them."""
    return {name: leaf for name, leaf in leaves.items() if math.prod(leaf.shape)}


def describe(leaves: dict[str, jax.Array]) -> dict[str, Leaf]:
    """Read shape and dtype of each leaf, abstract or not."""
    return {name: Leaf(tuple(leaf.shape), str(leaf.dtype)) for name, leaf in leaves.items()}


def num_bytes(leaves: dict[str, jax.Array]) -> int:
    """Count the bytes of all leaves, keys as their raw data."""
    total = 0
    for leaf in leaves.values():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        total += math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize
    return total


def check_same(saved: dict[str, Leaf], wanted: dict[str, Leaf], source: str) -> None:
    """Refuse a checkpoint that differs in any leaf from the state it would fill; nothing is ever cast or reshaped.

    Raises CheckpointError naming each leaf with what was saved and what is wanted. `source` names the checkpoint.
    """
    lines = []
    for name in [*wanted, *(name for name in saved if name not in wanted)]:
        if saved.get(name) != wanted.get(name):
            lines.append(f"  {name}: saved {saved.get(name, 'nothing')}, wanted {wanted.get(name, 'nothing')}")
    if not lines:
        return
    if len(lines) > _MAX_LISTED:
        lines = [*lines[:_MAX_LISTED], f"  and {len(lines) - _MAX_LISTED} more"]
    raise CheckpointError(
        f"{source} holds another state than this config describes:\n" + "\n".join(lines) + "\n"
        "Restore it with the config it was written with, or start another run with another --workdir."
    )
