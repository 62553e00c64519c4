"""Which dims of the train state are split, and over which axes of the mesh.

For a parameter, the first that has a word decides:

1. a rule of the config, `sharding.rules.NAME = {match, spec}`: the first whose `match` is found in the path;
2. the model's own annotations: linen's `nn.with_partitioning` and `nn.with_logical_partitioning`, nnx's `out_sharding`;
3. automatic FSDP: the largest dim that `fsdp` divides, if there are at least `sharding.min_size` elements.

A rule is the last word, and so is an annotation that names axes of the mesh, or none for any dim. One by logical names,
as "heads" or "vocab", splits the dims whose names stand for axes (layout.py), and leaves the others to automatic FSDP:
so `tensor` and `fsdp` split one parameter. A dim of it that its axes do not divide stays whole, and the table says so.

Optimizer state is split like the parameter it belongs to. Where it has a shape of its own (the factored moments of
adafactor), automatic FSDP decides. `sharding.zero1` also splits it over `data`, which the parameters are repeated over.
"""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding

from jaxtrain.config import schema
from jaxtrain.errors import ConfigError, Problem
from jaxtrain.layout import Axes, Fitted, Layout, make_layout, spec_of, spelled
from jaxtrain.typing import Params, PyTree


class Placement(NamedTuple):
    """How one parameter is split. `by`: who said so, for the table; `is_automatic`: nobody but automatic FSDP did."""

    axes: Axes
    by: str
    is_automatic: bool = False


class Annotation(NamedTuple):
    """A name, names or None for each dim. sizes: name -> how many things a dim of it holds; see models/logical.py."""

    names: tuple[Any, ...]
    sizes: Mapping[str, int] = MappingProxyType({})


def annotations(boxed_params: PyTree) -> dict[str, Annotation]:
    """Give path -> annotation of the parameters that `Task.init` returned in a Flax box."""
    boxes = jax.tree.leaves_with_path(boxed_params, is_leaf=lambda node: isinstance(node, nn.Partitioned))
    return {
        _name(path): Annotation(_names(box), dict(getattr(box, "sizes", ())))
        for path, box in boxes
        if isinstance(box, nn.Partitioned)
    }


def _names(box: nn.Partitioned) -> tuple[Any, ...]:
    own_rules = dict(getattr(box, "rules", None) or ())
    return tuple(own_rules.get(name, name) if isinstance(name, str) else name for name in box.names)


def _name(path: Sequence[Any]) -> str:
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def place_params(
    mesh: Mesh, params: Params, sharding: schema.Sharding, named: Mapping[str, Annotation]
) -> dict[str, Placement]:
    """Give path -> placement of every parameter. named: what `annotations` found. Raises ConfigError."""
    layout = make_layout(mesh, sharding)
    rules = {name: (re.compile(rule.match), _read_spec(name, rule.spec, mesh)) for name, rule in sharding.rules.items()}
    placed, unused = {}, dict.fromkeys(rules)
    for path, leaf in jax.tree.leaves_with_path(params):
        name = _name(path)
        matching = [rule for rule, (pattern, _) in rules.items() if pattern.search(name)]
        for rule in matching:
            unused.pop(rule, None)
        if matching:
            key = f"sharding.rules.{matching[0]}.spec"
            axes = _fitted(rules[matching[0]][1], name, leaf.shape, mesh, key, sharding.rules[matching[0]].spec)
            placed[name] = Placement(axes, f"rule {matching[0]}")
        else:
            placed[name] = _as_annotated(named.get(name), name, leaf.shape, layout, sharding)
    for rule in unused:
        paths = ", ".join(list(placed)[:6])
        allowed = f"no parameter has it in its path; there are {paths}" + (", ..." if len(placed) > 6 else "")
        raise ConfigError([Problem(f"sharding.rules.{rule}.match", sharding.rules[rule].match, allowed, "Correct it.")])
    _refuse_unsharded(mesh, params, placed, sharding)
    return placed


def _as_annotated(
    annotation: Annotation | None, path: str, shape: Sequence[int], layout: Layout, sharding: schema.Sharding
) -> Placement:
    """Split a parameter as the model says, where it does, and then by automatic FSDP unless that was the last word."""
    mesh, fitted = layout.mesh, Fitted((), "")
    if annotation is not None:
        dims = [name if isinstance(name, tuple | list) else (name,) for name in annotation.names]
        parts = [part for dim in dims for part in dim if part is not None]
        if not parts or any(part in mesh.shape for part in parts):
            told = tuple(_mesh_axes(dim, layout) for dim in dims)
            value = ", ".join(map(str, annotation.names))
            return Placement(_fitted(told, path, shape, mesh, "task.model", value), "model")
        fitted = layout.fit(annotation.names, shape, annotation.sizes)
    by = ", ".join(filter(None, ["model" if any(fitted.axes) else "", fitted.whole]))
    axes = largest_dim(mesh, shape, sharding.min_size, fitted.axes)
    return Placement(axes, by, is_automatic=not any(fitted.axes))


def _read_spec(rule: str, text: str, mesh: Mesh) -> Axes:
    """Read "data+fsdp, -, tensor": for each dim the axes it is split over. Dims that are not named stay whole."""
    axes = tuple(
        tuple(axis.strip() for axis in dim.split("+")) if dim.strip() not in ("", "-") else ()
        for dim in text.split(",")
    )
    names = [axis for dim in axes for axis in dim]
    wrong = next((axis for axis in names if axis not in mesh.shape), None)
    twice = next((axis for axis in names if names.count(axis) > 1), None)
    if wrong is not None or twice is not None:
        allowed = f"{wrong!r} is no axis of the mesh" if wrong is not None else f"it names {twice!r} twice"
        fix = f'Axes are {", ".join(mesh.shape)}; "-" leaves a dim whole, as in "-, fsdp".'
        raise ConfigError([Problem(f"sharding.rules.{rule}.spec", text, allowed, fix)])
    return axes


def _mesh_axes(names: Sequence[Any], layout: Layout) -> tuple[str, ...]:
    """The axes that an annotation's names for one dim stand for: what the config says of a name, or the name itself."""
    known = dict(layout.axes)
    found = [known.get(name, (name,) if name in layout.mesh.shape else ()) for name in names]
    return tuple(axis for axes in found for axis in axes)


def _fitted(axes: Axes, path: str, shape: Sequence[int], mesh: Mesh, key: str, value: Any) -> Axes:
    """The axes, once they are known to fit the shape."""
    if len(axes) > len(shape) and any(axes[len(shape) :]):
        allowed = f"it names {len(axes)} dims, but {path} has {len(shape)}: {list(shape)}"
        raise ConfigError([Problem(key, value, allowed, "Name at most as many dims.")])
    for dim, names in enumerate(axes[: len(shape)]):
        shards = math.prod(mesh.shape[name] for name in names)
        if shape[dim] % shards:
            allowed = f"dim {dim} of {path} is {shape[dim]}, not divisible by the {shards} devices of {spelled(names)}"
            raise ConfigError([Problem(key, value, allowed, 'Split another dim, or "-" to leave it whole.')])
    return axes[: len(shape)]


def largest_dim(mesh: Mesh, shape: Sequence[int], min_size: int, taken: Axes = (), axis: str = "fsdp") -> Axes:
    """Split the largest dim that `axis` divides, the first of equals, of those that `taken` leaves whole.

    Arrays of fewer than `min_size` elements, without such a dim, or split over `axis` already, stay as they are.
    """
    axes = [*taken, *((),) * (len(shape) - len(taken))]
    shards = 1 if any(axis in names for names in taken) else mesh.shape[axis]
    fitting = [dim for dim, size in enumerate(shape) if size and size % shards == 0 and not axes[dim]]
    if shards > 1 and fitting and math.prod(shape) >= min_size:
        axes[max(fitting, key=lambda dim: shape[dim])] = (axis,)
    return tuple(axes)


def _refuse_unsharded(mesh: Mesh, params: Params, placed: Mapping[str, Placement], sharding: schema.Sharding) -> None:
    """Under fsdp, refuse to repeat more than `max_unsharded` elements on every device because nothing divides them."""
    if mesh.shape["fsdp"] == 1:
        return
    sizes = {_name(path): leaf.size for path, leaf in jax.tree.leaves_with_path(params)}
    whole = {
        name: sizes[name] for name, placement in placed.items() if placement.is_automatic and not any(placement.axes)
    }
    if sum(whole.values()) > sharding.max_unsharded:
        largest = sorted(whole, key=lambda name: -whole[name])[:3]
        allowed = (
            f"{sum(whole.values()):,} elements of parameters would be repeated on each of the {mesh.shape['fsdp']} "
            f"devices of fsdp, as in {', '.join(largest)}"
        )
        fix = "Choose sizes that fsdp divides, lower --config.sharding.min_size, write a rule, or raise this limit."
        raise ConfigError([Problem("sharding.max_unsharded", sharding.max_unsharded, allowed, fix)])


def state_shardings(
    mesh: Mesh,
    abstract_state: Any,
    optimizer: optax.GradientTransformation,
    sharding: schema.Sharding,
    named: Mapping[str, Annotation] = MappingProxyType({}),
) -> Any:
    """Give the sharding of every leaf of a train state; what is neither of parameters nor optimizer is repeated.

    named: what `annotations` found. Raises ConfigError.
    """
    placed = place_params(mesh, abstract_state.params, sharding, named)

    def on_mesh(axes: Axes) -> NamedSharding:
        return NamedSharding(mesh, spec_of(axes))

    params = jax.tree.map_with_path(lambda path, leaf: on_mesh(placed[_name(path)].axes), abstract_state.params)
    shapes = {path: leaf.shape for path, leaf in jax.tree.leaves_with_path(abstract_state.params)}

    def like_param(path: tuple, leaf: Any) -> NamedSharding:
        owner = next((path[:n] for n in range(len(path) + 1) if path[:n] in shapes), None)
        if owner is not None and leaf.shape == shapes[owner]:
            axes = placed[_name(owner)].axes
        else:
            axes = largest_dim(mesh, leaf.shape, sharding.min_size)
        if sharding.zero1 and not any("data" in names for names in axes):
            axes = largest_dim(mesh, leaf.shape, sharding.min_size, axes, "data")
        return on_mesh(axes)

    opt_state = optax.tree_map_params(
        optimizer,
        # Whole trees, matched by path: some lack parameters (masks, muon) or hold several arrays for one (sm3).
        lambda tree: jax.tree.map_with_path(like_param, tree),
        abstract_state.opt_state,
        transform_non_params=lambda leaf: on_mesh(()),
        is_leaf=lambda _: True,
    )
    rest = vars(jax.tree.map(lambda leaf: on_mesh(()), abstract_state))
    like_params = {name: params for name in ("params", "ema") if rest.get(name) is not None}
    return type(abstract_state)(**{**rest, **like_params, "opt_state": opt_state})
