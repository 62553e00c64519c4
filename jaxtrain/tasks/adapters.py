"""Make one kind of thing of every kind of model.

A model, to a task, is a pair of functions without hidden state:

    init(key, inputs) -> (params, model_state)
    apply(params, model_state, inputs, key, train) -> (outputs, model_state)

Such a pair is used as it is. A Flax `linen` or `nnx` module, unchanged, is turned into one here:

* its parameters become `params`, everything else it keeps (batch statistics, caches, your own collections or Variable
  types) becomes `model_state`; both are nested dicts with string keys;
* if its method takes an argument named `train` or `deterministic`, it is told so; nnx modules are also put into
  `train()` or `eval()` mode;
* how its parameters are annotated to be sharded stays with them, in Flax's boxes, until the state is made;
* its random streams start anew in every call: "dropout" from `key`, the i-th other stream from `fold_in(key, 1 + i)`;
* floating-point inputs are converted to 16 bits when all the parameters arrive in that precision.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from jaxtrain.typing import Array, ModelState, Params, PyTree


class Model(NamedTuple):
    """`apply` also takes `method`, the name of another method of a module; plain pairs have none."""

    init: Callable[[Array, Array], tuple[Params, ModelState]]
    apply: Callable[..., tuple[Any, ModelState]]


def as_model(model: Any) -> Model:
    """Give the pair of functions for a linen module, an nnx module or factory, or a pair.

    An nnx factory is a class or function that takes `rngs`. Raises TypeError for anything else.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module):
        return _from_linen(model)
    if isinstance(model, nnx.Module):
        return _from_nnx(_Instance(model))
    if _makes_nnx_module(model):
        return _from_nnx(model)
    if isinstance(model, tuple) and len(model) == 2 and all(callable(part) for part in model):
        return _from_pair(*model)
    raise TypeError(
        f"{model!r} is not a model. Allowed: a flax linen module, a flax nnx module or a class of one that takes "
        "`rngs`, or a pair (init, apply) of functions."
    )


def _makes_nnx_module(model: Any) -> bool:
    target = model.func if isinstance(model, functools.partial) else model
    if inspect.isclass(target):
        return issubclass(target, nnx.Module)  # its metaclass hides the arguments of __init__
    return callable(target) and "rngs" in inspect.signature(target).parameters


def _from_linen(module: nn.Module) -> Model:
    def init(key: Array, inputs: Array) -> tuple[Params, ModelState]:
        rngs = {"params": key, "dropout": jax.random.fold_in(key, 1)}
        variables = dict(module.init(rngs, inputs, **_mode(module.__call__, False)))
        return variables.pop("params", {}), nn.unbox(variables)

    def apply(
        params: Params, model_state: ModelState, inputs: Array, key: Array | None, train: bool, method: str = "__call__"
    ) -> tuple[Any, ModelState]:
        rngs = {} if key is None else {"dropout": key, "params": jax.random.fold_in(key, 1)}
        outputs, changed = module.apply(
            {"params": params, **model_state},
            _cast_inputs(inputs, params),
            rngs=rngs,
            mutable=list(model_state) if train else [],
            method=method,
            **_mode(getattr(module, method), train),
        )
        return outputs, {**model_state, **changed}

    return Model(init, apply)


class _Instance:
    """An nnx module that exists already, as a factory: its present values are the initial ones."""

    def __init__(self, module: nnx.Module):
        self.module = module

    def __call__(self, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.clone(self.module)


class _Kinds(NamedTuple):
    """The three parts of an nnx module's state."""

    params: PyTree
    rngs: PyTree
    rest: PyTree


def _kinds(module: nnx.Module) -> tuple[Any, _Kinds]:
    graphdef, *states = nnx.split(module, nnx.Param, nnx.RngState, ...)
    return graphdef, _Kinds(*states)


def _rngs(key: Array) -> nnx.Rngs:
    """The streams that a module is made with. "dropout" is one of its own, or dropouts would draw from "default"."""
    return nnx.Rngs(params=key, dropout=jax.random.fold_in(key, 1), default=jax.random.fold_in(key, 2))


def _make(factory: Callable[..., nnx.Module], key: Array) -> nnx.Module:
    with nnx.use_eager_sharding(False):  # else annotated variables want a mesh while they are made
        return factory(rngs=_rngs(key))


@functools.lru_cache(maxsize=32)
def _from_nnx(factory: Callable[..., nnx.Module]) -> Model:
    @functools.cache
    def skeleton(train: bool) -> tuple[Any, _Kinds]:
        """The module's graph in one of its modes, and the shapes of its state."""
        module = nnx.eval_shape(lambda: _make(factory, jax.random.key(0)))
        module.train() if train else module.eval()
        return _kinds(module)

    def init(key: Array, inputs: Array) -> tuple[Params, ModelState]:
        _, state = _kinds(_make(factory, key))
        return _to_dict(state.params, _boxed), _to_dict(state.rest)

    def apply(
        params: Params, model_state: ModelState, inputs: Array, key: Array | None, train: bool, method: str = "__call__"
    ) -> tuple[Any, ModelState]:
        graphdef, shapes = skeleton(train)
        params_state, rest = _from_dict(shapes.params, params), _from_dict(shapes.rest, model_state)
        module = nnx.merge(graphdef, params_state, _placeholder(shapes.rngs), rest)
        if key is not None:
            tags = sorted(
                {str(stream.tag) for stream in jax.tree.leaves(shapes.rngs, is_leaf=_is_variable)} - {"dropout"}
            )
            streams: Any = {"dropout": key} | {tag: jax.random.fold_in(key, 1 + i) for i, tag in enumerate(tags)}
            nnx.reseed(module, policy="match_shape", **streams)
        call = getattr(module, method)
        outputs = call(_cast_inputs(inputs, params), **_mode(call, train))
        return outputs, _to_dict(_kinds(module)[1].rest) if train else model_state

    return Model(init, apply)


def _from_pair(init: Callable, apply: Callable) -> Model:
    def apply_pair(
        params: Params, model_state: ModelState, inputs: Array, key: Array | None, train: bool, method: str = "__call__"
    ) -> tuple[Any, ModelState]:
        if method != "__call__":
            raise TypeError(f"A pair (init, apply) has no method {method!r}; use a module, or do without this option.")
        return apply(params, model_state, _cast_inputs(inputs, params), key, train)

    return Model(init, apply_pair)


def _mode(call: Callable, train: bool) -> dict[str, Any]:
    """The arguments by which a module's method is told whether it trains."""
    names = inspect.signature(call).parameters
    return {name: value for name, value in (("train", train), ("deterministic", not train)) if name in names}


def _cast_inputs(inputs: PyTree, params: Params) -> PyTree:
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    if len(dtypes) != 1 or (dtype := dtypes.pop()).itemsize != 2:
        return inputs
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, inputs)


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _boxed(variable: nnx.Variable) -> Any:
    """The value, in the box that linen uses, if the variable says how it is sharded."""
    names, value = variable.get_metadata("out_sharding", None), variable.get_value()
    if not names:
        return value
    return nn.LogicallyPartitioned(value, tuple(names), rules=variable.get_metadata("sharding_rules", None))


def _to_dict(state: PyTree, read: Callable[[nnx.Variable], Any] = lambda variable: variable.get_value()) -> dict:
    nested: dict = {}
    for path, variable in nnx.to_flat_state(state):
        *parents, name = [str(part) for part in path]
        place = functools.reduce(lambda level, part: level.setdefault(part, {}), parents, nested)
        place[name] = read(variable)
    return nested


def _from_dict(shapes: PyTree, nested: Mapping) -> PyTree:
    """Fill an nnx state of these paths with the values of the nested dict made by `_to_dict`."""
    flat = []
    for path, variable in nnx.to_flat_state(shapes):
        value = functools.reduce(lambda level, part: level[str(part)], path, nested)
        flat.append((path, variable.replace(value)))
    return nnx.from_flat_state(flat)


def _placeholder(shapes: PyTree) -> PyTree:
    """Random streams of the right shapes; they are reseeded before use."""

    def zeros(leaf: Any) -> Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), leaf.shape)
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(zeros, shapes)
