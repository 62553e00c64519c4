"""Reading a state out of a checkpoint, onto the devices that the wanted state names."""

import pathlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxtrain.checkpoint import leaves
from jaxtrain.checkpoint.manifest import Manifest
from jaxtrain.errors import CheckpointError
from jaxtrain.typing import PyTree

ITEM_NAME = "default"  # where Orbax's own CheckpointManager puts a single item: its tools can read our checkpoints


def read_state(path: pathlib.Path, manifest: Manifest, abstract_state: PyTree) -> PyTree:
    """Restore a verified checkpoint into the structure, shardings, shapes and dtypes of `abstract_state`.

    Its leaves are `jax.ShapeDtypeStruct` with a sharding, or arrays; without a sharding, the first local device. Raises
    CheckpointError when a leaf differs from what was saved. Orbax would cast a dtype without a word.
    """
    wanted = leaves.named(abstract_state)
    leaves.check_same(dict(manifest.leaves), leaves.describe(wanted), f"The checkpoint {path}")
    # Straight from the item: the files beside it, which the manifest cannot cover, are not even opened.
    abstract = {name: _placed(leaf) for name, leaf in leaves.stored(wanted).items()}
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(path / ITEM_NAME, abstract) if abstract else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {path} verifies but cannot be read: {error}") from error
    filled = [restored[name] if name in restored else _empty(leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(abstract_state), filled)


def read_part(path: pathlib.Path, manifest: Manifest, abstract_part: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Restore some fields of the state in a verified checkpoint, reading nothing of the others.

    abstract_part: a field's name -> its `jax.ShapeDtypeStruct` leaves; one without a sharding becomes a NumPy array.
    Raises CheckpointError when a leaf of these fields differs from what was saved.
    """
    wanted = leaves.named(abstract_part)
    saved = {name: leaf for name, leaf in manifest.leaves.items() if name.partition("/")[0] in abstract_part}
    leaves.check_same(saved, leaves.describe(wanted), f"The checkpoint {path}")
    abstract = leaves.stored(wanted)
    how = {
        name: ocp.ArrayRestoreArgs(sharding=leaf.sharding) if leaf.sharding else ocp.RestoreArgs(np.ndarray)
        for name, leaf in abstract.items()
    }
    arguments = ocp.args.PyTreeRestore(item=abstract, restore_args=how, partial_restore=True)
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            restored = checkpointer.restore(path / ITEM_NAME, args=arguments) if abstract else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {path} verifies but cannot be read: {error}") from error
    filled = [
        restored[name] if name in restored else _empty(leaf) if leaf.sharding else np.zeros(leaf.shape, leaf.dtype)
        for name, leaf in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(abstract_part), filled)


def _placed(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _empty(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
    return jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), _placed(leaf).sharding)
