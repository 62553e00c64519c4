"""Every name of JAX, Orbax or ml_collections that is not public. Each has a test, so an upgrade fails there."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import config_dict

if TYPE_CHECKING:
    import jax

# The directory that Orbax writes an unfinished save into is `<step>` plus this.
ORBAX_TMP_SUFFIX = ".orbax-checkpoint-tmp"


def items_as_set(group: config_dict.ConfigDict) -> list[tuple[Any, Any]]:
    """Give (key, value or FieldReference) in the order of the config file: a ConfigDict itself sorts by key."""
    return list(vars(group)["_fields"].items())


def make_put(
    shape: tuple[int, ...], dtype: Any, sharding: "jax.sharding.Sharding"
) -> Callable[[np.ndarray], "jax.Array"]:
    """Give what `jax.device_put(array, sharding)` does for arrays like this, in a tenth of its 120 us.

    All devices of the sharding are this process's.
    """
    import jax  # here, because configs are read with the help of this module before JAX may be imported
    from jax._src.lib import xla_client  # type: ignore[attr-defined]

    indices = sharding.devices_indices_map(shape)
    devices, slices = list(indices), list(indices.values())
    aval = jax.core.ShapedArray(shape, dtype)

    def put(array: np.ndarray) -> "jax.Array":
        return xla_client.batched_device_put(aval, sharding, [array[index] for index in slices], devices)

    return put


def is_recomputed(equation: Any) -> bool:
    """Say whether an equation of a jaxpr, directly in the body of a `remat`, computes again what was computed before.

    Differentiation puts both into one body, the forward pass once more and the backward pass, and tells them apart
    only in the names that it gives to profilers.
    """
    return "rematted_computation" in str(equation.source_info.name_stack)
