"""Where arrays live: the device mesh, the placing of batches, and the table of a sharded state.

Axes are of the mesh, dims are of an array. Batches are split over `data` and `fsdp` together; how the train state and
the activations are split is decided in partitioning.py.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxtrain import compat
from jaxtrain.config import schema
from jaxtrain.errors import ConfigError, DataError, Problem
from jaxtrain.typing import PyTree

# The last axis varies fastest over the devices: `tensor` communicates most, so its peers are neighbours.
AXES = ("data", "fsdp", "sequence", "tensor")
BATCH_AXES = ("data", "fsdp")  # peers of the others hold the same rows


def mesh_shape(config: schema.Mesh, num_devices: int) -> dict[str, int]:
    """Give the size of each axis, with the one that is -1 worked out. Raises ConfigError if they do not multiply up."""
    sizes = {axis: getattr(config, axis) for axis in AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    spelled = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    if len(free) > 1:
        raise ConfigError([Problem(f"mesh.{free[1]}", -1, f"only one axis may be -1 ({spelled})", "Give it a size.")])
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free and num_devices % fixed == 0:
        sizes[free[0]] = num_devices // fixed
    elif free or fixed != num_devices:
        axis = next((axis for axis, size in sizes.items() if size not in (1, -1)), AXES[0])
        flags = [
            " ".join(f"--config.mesh.{axis}={size}" for axis, size in shape.items())
            for shape in _nearest_shapes(sizes, num_devices)
        ]
        fix = f"Use {' or '.join(flags)}."
        present = "is 1 device" if num_devices == 1 else f"are {num_devices} devices"
        allowed = f"the axes ({spelled}) multiply to {fixed}, but there {present}"
        raise ConfigError([Problem(f"mesh.{axis}", sizes[axis], allowed, fix)])
    return sizes


def _nearest_shapes(sizes: Mapping[str, int], num_devices: int) -> list[dict[str, int]]:
    """Three meshes of all devices, the closest to the wanted sizes first. An axis of -1 stays so."""

    def distance(shape: tuple[int, ...]) -> float:
        pairs = zip(shape, sizes.values(), strict=True)
        return sum(abs(math.log(ours / wanted)) for ours, wanted in pairs if wanted != -1)

    # An axis that a model must have been made for is not proposed to those who do not use it.
    may_grow = [axis in BATCH_AXES or size != 1 for axis, size in sizes.items()]
    shapes = itertools.product(*(divisors(num_devices) if grows else [1] for grows in may_grow))
    fitting = sorted((shape for shape in shapes if math.prod(shape) == num_devices), key=distance)
    kept = [
        tuple(-1 if wanted == -1 else ours for ours, wanted in zip(shape, sizes.values(), strict=True))
        for shape in fitting[:3]
    ]
    return [{axis: size for axis, size, grows in zip(sizes, shape, may_grow, strict=True) if grows} for shape in kept]


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def make_mesh(config: schema.Mesh, devices: Sequence[Any] | None = None) -> Mesh:
    """Arrange all devices as the config says. Axes are Auto: shardings follow from those of the arguments."""
    devices = jax.devices() if devices is None else devices
    sizes = mesh_shape(config, len(devices))
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=list(devices)
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Repeat on every device."""
    return NamedSharding(mesh, PartitionSpec())


def with_shardings(abstract: PyTree, shardings: PyTree) -> PyTree:
    """Attach shardings to the shapes and dtypes of a tree."""
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), abstract, shardings)


class BatchPlacer:
    """Puts the rows that this process holds of a batch onto its devices.

    num_microbatches: k; arrays become [k, batch / k, ...] with the second dim split over the batch axes.
    None: arrays stay [batch, ...], split in the first dim, as evaluation wants them.
    """

    def __init__(self, mesh: Mesh, batch_size: int, num_microbatches: int | None):
        self.batch_size = batch_size
        self.num_microbatches = num_microbatches
        lead = () if num_microbatches is None else (None,)
        self.sharding = NamedSharding(mesh, PartitionSpec(*lead, BATCH_AXES))
        self.rows = self._local_rows()
        self._is_whole = len(self.rows) == batch_size
        # By the names of a batch's arrays, which all look like the first.
        self._puts: dict[str, Callable[[np.ndarray], jax.Array]] = {}
        self._all_true_arrays: dict[str, jax.Array] = {}

    def _lead_shape(self) -> tuple[int, ...]:
        k = self.num_microbatches
        return (self.batch_size,) if k is None else (k, self.batch_size // k)

    def _local_rows(self) -> np.ndarray:
        """The row numbers of the batch that this process's devices hold, ascending within each microbatch."""
        rows = np.arange(self.batch_size).reshape(self._lead_shape())
        indices = self.sharding.devices_indices_map(rows.shape)
        dim = rows.ndim - 1
        mine = {indices[device][dim].indices(rows.shape[dim]) for device in self.sharding.addressable_devices}
        parts = [rows[..., slice(*bounds)] for bounds in sorted(mine)]
        return np.concatenate(parts, axis=dim).reshape(-1)

    def __call__(self, local_batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Place arrays [local_batch, ...], the rows `self.rows` in that order."""
        return {
            # Nearly every mask is all True: one array on the devices serves them all.
            name: self._all_true(name, rows) if _is_all_true(rows) else self._put(name, rows)
            for name, rows in local_batch.items()
        }

    def _all_true(self, name: str, rows: np.ndarray) -> jax.Array:
        if name not in self._all_true_arrays:
            self._all_true_arrays[name] = self._put(name, np.ones_like(rows))
        return self._all_true_arrays[name]

    def _put(self, name: str, rows: np.ndarray) -> jax.Array:
        if name not in self._puts:
            self._puts[name] = self._make_put(name, rows)
        return self._puts[name](rows)

    def _make_put(self, name: str, rows: np.ndarray) -> Callable[[np.ndarray], jax.Array]:
        """Give what places arrays like this one."""
        dtype = jax.dtypes.canonicalize_dtype(rows.dtype)
        shape = (*self._lead_shape(), *rows.shape[1:])
        if self._is_whole:
            local_shape = shape
            put = compat.make_put(shape, dtype, self.sharding)
        else:
            local_shape = (*self._lead_shape()[:-1], -1, *rows.shape[1:])
            put = functools.partial(jax.make_array_from_process_local_data, self.sharding, global_shape=shape)
        if dtype == rows.dtype:
            return lambda rows: put(rows.reshape(local_shape))
        return lambda rows: put(_narrow(name, rows, dtype).reshape(local_shape))

    def abstract(self, example: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a placed batch of examples like this one."""
        return {
            name: jax.ShapeDtypeStruct((*self._lead_shape(), *value.shape), value.dtype, sharding=self.sharding)
            for name, value in example.items()
        }


def _is_all_true(rows: np.ndarray) -> bool:
    # rows.all() takes 40 us here.
    return rows.dtype == bool and np.count_nonzero(rows) == rows.size


def _narrow(name: str, rows: np.ndarray, dtype: Any) -> np.ndarray:
    """Convert 64-bit numbers to what the device holds. Raises DataError if a whole number does not fit."""
    if np.issubdtype(dtype, np.integer) and rows.size:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if rows.min() < low or rows.max() > high:
            found = f"{rows.min()} to {rows.max()}"
            raise DataError(
                f"{name!r} holds {found}, but devices hold {dtype}: {low} to {high}. Map it in a transform."
            )
    return rows.astype(dtype)


def table(tree: PyTree) -> list[tuple[str, tuple[int, ...], str, str, int]]:
    """List each leaf of a tree of sharded arrays: path, shape, dtype, sharding by dim, bytes on each device."""
    rows = []
    for path, leaf in jax.tree.leaves_with_path(tree):
        num_bytes = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        axes = ", ".join("-" if axis is None else str(axis) for axis in leaf.sharding.spec) or "-"
        rows.append(
            (jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape, str(leaf.dtype), axes, num_bytes)
        )
    return rows


def describe(state: Any, said_by: Mapping[str, str] | None = None) -> str:
    """Print the table of a train state's parameters, and what the whole state takes on each device.

    said_by: path -> who said how it is split, where that is not automatic.
    """
    rows = [
        ("parameter", "shape", "dtype", "sharding", "bytes per device", "by" if any((said_by or {}).values()) else "")
    ]
    rows += [
        (path, str(list(shape)), dtype, axes, f"{size:,}", (said_by or {}).get(path, ""))
        for path, shape, dtype, axes, size in table(state.params)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    num_params = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    params, opt_state = (sum(row[-1] for row in table(part)) for part in (state.params, state.opt_state))
    total = f"{num_params:,} parameters: {params:,} bytes per device, and {opt_state:,} of optimizer state"
    return "\n".join([*lines, total])
