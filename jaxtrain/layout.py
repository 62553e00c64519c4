"""What the names of dims stand for: the axes of the mesh that split them, in parameters and in activations alike.

By default it is LOGICAL_AXES; `sharding.logical_axes` of the config is merged over it. A layout is in force while a
program is traced, where the functions of models/logical.py ask it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrain.config import schema
from jaxtrain.errors import ConfigError, Problem
from jaxtrain.models import logical

Axes = tuple[tuple[str, ...], ...]  # for each dim the axes it is split over

LOGICAL_AXES: Mapping[str, str] = MappingProxyType(
    {
        "batch": "data+fsdp",
        "seq": "sequence",
        "heads": "tensor",
        "kv_heads": "tensor",
        "mlp": "tensor",
        "vocab": "tensor",
    }
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the names of dims stand for on a mesh. axes: name -> axes, those of more than one device."""

    mesh: Mesh
    axes: tuple[tuple[str, tuple[str, ...]], ...]

    def fit(self, names: Sequence[Any], shape: Sequence[int], sizes: Mapping[str, int] | None = None) -> "Fitted":
        """Give the axes of each dim. A name that is none here, or whose axes an earlier dim has, leaves a dim whole.

        sizes: name -> how many things that must not be cut such a dim holds, where these are not its elements.
        """
        known, taken, axes, whole = dict(self.axes), set[str](), list[tuple[str, ...]](), list[str]()
        for name, size in zip(names, shape, strict=False):
            parts = name if isinstance(name, tuple | list) else (name,)
            wanted = tuple(axis for part in parts for axis in known.get(part, ()) if axis not in taken)
            shards = math.prod(self.mesh.shape[axis] for axis in wanted)
            count = (sizes or {}).get(name, size)
            if count % shards:
                whole.append(f"{name}={count} stays whole over {spelled(wanted)}={shards}")
                wanted = ()
            taken.update(wanted)
            axes.append(wanted)
        return Fitted(tuple(axes), ", ".join(whole))

    def constrain(self, x: jax.Array, names: tuple[str | None, ...]) -> jax.Array:
        """Keep an activation split so, while a program is traced."""
        if self.mesh.size == 1:
            return x
        if len(names) != x.ndim:
            raise ValueError(f"{len(names)} names {names} for the {x.ndim} dims of an array {x.shape}")
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec_of(self.fit(names, x.shape).axes)))

    def without(self, axes: Sequence[str]) -> "Layout":
        """Give the layout of what is the same along some axes."""
        left = ((name, tuple(axis for axis in split if axis not in axes)) for name, split in self.axes)
        return dataclasses.replace(self, axes=tuple(left))

    def splits(self, name: str, size: int) -> bool:
        """Say whether a dim of this name and size is split."""
        return any(self.fit((name,), (size,)).axes)

    def traced(self, function: Callable) -> Callable:
        """Give `function`, which is traced with this layout in force, wherever and whenever that happens."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with logical.laid_out(self):
                return function(*args, **kwargs)

        return inside


class Fitted(NamedTuple):
    """The axes of each dim, and which dims stay whole because they are not divisible, in words."""

    axes: Axes
    whole: str


def make_layout(mesh: Mesh, sharding: schema.Sharding) -> Layout:
    """Read what the names of dims stand for. Raises ConfigError for an axis that there is not."""
    axes = {}
    for name, text in {**LOGICAL_AXES, **sharding.logical_axes}.items():
        parts = [axis.strip() for axis in text.split("+") if axis.strip() not in ("", "-")]
        wrong = next((axis for axis in parts if axis not in mesh.shape), None)
        if wrong is not None and name in sharding.logical_axes:
            fix = f'Axes are {", ".join(mesh.shape)}; "" leaves the dim whole.'
            raise ConfigError(
                [Problem(f"sharding.logical_axes.{name}", text, f"{wrong!r} is no axis of the mesh", fix)]
            )
        axes[name] = tuple(axis for axis in parts if mesh.shape.get(axis, 1) > 1)
    return Layout(mesh, tuple(axes.items()))


def spelled(axes: Sequence[str]) -> str:
    """Write the axes of one dim as a config does."""
    return "+".join(axes)


def spec_of(axes: Axes) -> PartitionSpec:
    """Give the spec in its shortest form: an axis alone is itself, and dims at the end that stay whole are left out."""
    parts = [names[0] if len(names) == 1 else names or None for names in axes]
    while parts and parts[-1] is None:
        parts.pop()
    return PartitionSpec(*parts)
