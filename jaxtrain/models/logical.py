"""Names for the dims of parameters and activations. A model gives them and knows no mesh.

What they stand for is said by whoever trains the model (layout.py). Where nobody does, they mean nothing: activations
are as they are, and parameters plain arrays.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import flax
import flax.linen as nn
import jax


class Layout(Protocol):
    """What the names stand for."""

    def constrain(self, x: jax.Array, names: tuple[str | None, ...]) -> jax.Array: ...

    def splits(self, name: str, size: int) -> bool: ...

    def without(self, axes: Sequence[str]) -> "Layout": ...


_in_force: contextvars.ContextVar[Layout | None] = contextvars.ContextVar("layout", default=None)


def in_force() -> Layout | None:
    """Give the layout that programs are traced under now."""
    return _in_force.get()


@contextlib.contextmanager
def laid_out(layout: Layout | None) -> Iterator[None]:
    """Put a layout in force for what is traced inside."""
    token = _in_force.set(layout)
    try:
        yield
    finally:
        _in_force.reset(token)


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Split the dims of an activation as the layout in force says; None, and a name it does not know, keep one whole.

    names: one for each dim, as "batch", "seq", "embed", "heads", "mlp", "vocab".
    """
    layout = in_force()
    return x if layout is None else layout.constrain(x, names)


def is_split(name: str, size: int) -> bool:
    """Say whether the layout in force splits a dim of this name and size."""
    layout = in_force()
    return layout is not None and layout.splits(name, size)


@flax.struct.dataclass
class Named(nn.LogicallyPartitioned):
    """Flax's box of a parameter and the names of its dims, with what it cannot say.

    sizes: (name, count) where a dim holds `count` things that must not be cut, as heads of head_dim elements each.
    """

    sizes: tuple[tuple[str, int], ...] = flax.struct.field(default=(), pytree_node=False)


def named(init: Callable[..., Any], *names: str | None, **sizes: int) -> Callable[..., Any]:
    """Give `init` with the dims of its result named, as by `nn.with_logical_partitioning`, while a layout is in force.

    sizes: see Named.
    """

    @functools.wraps(init)
    def boxed(*args: Any, **kwargs: Any) -> Any:
        value = init(*args, **kwargs)
        return value if in_force() is None or not any(names) else Named(value, names, sizes=tuple(sizes.items()))

    return boxed
