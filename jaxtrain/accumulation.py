"""Turn the gradients of a batch's microbatches into one update of the parameters.

A batch arrives as [k, batch / k, ...]: k microbatches. Each gives the gradient of its *total* loss and its weight; the
totals are added up and divided once by the summed weight, so that

    grads = sum_i d(total_i)/d(params) / sum_i weight_i

whatever k is. The division, the test for finite values and the clipping happen in a gate around the optimizer, on the
whole batch's gradient. `multisteps` lets `optax.MultiSteps` do the adding up, `fused` a plain sum; both give the same
numbers, and neither leaves an accumulator behind: `opt_state` is the optimizer's own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxtrain.metrics import Mean
from jaxtrain.typing import Array, ModelState, Params, PyTree

ENGINES = ("multisteps", "fused")


class Verdict(NamedTuple):
    """What the gate found and did.

    applied: bool, the optimizer ran.  finite: bool, loss and gradients were finite, and the weight not below 0.
    grad_norm: float32, global norm of the batch's gradient before clipping.
    bad_leaf: int32, position of the first non-finite leaf in `jax.tree.leaves(grads)`; -1 if there is none.
    """

    applied: Array
    finite: Array
    grad_norm: Array
    bad_leaf: Array


class GateState(NamedTuple):
    """The optimizer's own state, and what the gate said last."""

    inner: optax.OptState
    verdict: Verdict


class Microbatch(NamedTuple):
    """What one microbatch contributes: its gradients, its loss, its metrics and the model state after it."""

    grads: Params
    loss: Mean
    metrics: dict[str, Any]
    model_state: ModelState


class Accumulated(NamedTuple):
    """A whole batch, after its update. `loss` and `metrics` are merged over its microbatches."""

    params: Params
    opt_state: optax.OptState
    model_state: ModelState
    loss: Mean
    metrics: dict[str, Any]
    verdict: Verdict


def gate(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Wrap `optimizer` so that it sees the mean gradient of a batch worth an update, and no other.

    `update(grads, state, params, loss=..., last=...)` takes the summed gradient and the summed loss so far, and whether
    the batch is complete. A batch of weight 0, or with a value that is not finite, leaves the optimizer's state as it
    was and gives updates of zero.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Params) -> GateState:
        return GateState(optimizer.init(params), no_verdict())

    def update(
        grads: Params, state: GateState, params: Params | None = None, *, loss: Mean, last: Array, **extra_args: Any
    ) -> tuple[Params, GateState]:
        weight = jnp.where(loss.weight > 0, loss.weight, 1.0)
        grads = jax.tree.map(lambda g: g / weight, grads)  # float32, also for parameters of 16 bits
        leaf_is_finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads)])
        finite = jnp.all(leaf_is_finite) & jnp.isfinite(loss.total) & jnp.isfinite(loss.weight) & (loss.weight >= 0)
        applied = last & finite & (loss.weight > 0)

        def run() -> tuple[Params, optax.OptState]:
            like_params = grads if params is None else optax.tree.cast_like(grads, params)
            updates, inner = optimizer.update(like_params, state.inner, params, **extra_args)
            return updates, _keep_dtypes(inner, state.inner)

        def hold() -> tuple[Params, optax.OptState]:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run)[0]), state.inner

        updates, inner = jax.lax.cond(applied, run, hold)
        bad_leaf = jnp.where(jnp.all(leaf_is_finite), -1, jnp.argmin(leaf_is_finite)).astype(jnp.int32)
        grad_norm = optax.tree.norm(grads).astype(jnp.float32)
        return updates, GateState(inner, Verdict(applied, finite, grad_norm, bad_leaf))

    return optax.GradientTransformationExtraArgs(init, update)


def no_verdict() -> Verdict:
    """Give the verdict before any batch."""
    return Verdict(jnp.array(False), jnp.array(True), jnp.array(0.0, jnp.float32), jnp.array(-1, jnp.int32))


def accumulate(
    microbatch: Callable[[Params, ModelState, PyTree, Array], Microbatch],
    optimizer: optax.GradientTransformation,
    engine: str,
    params: Params,
    opt_state: optax.OptState,
    model_state: ModelState,
    batch: PyTree,
    enabled: Array,
) -> Accumulated:
    """Run `microbatch(params, model_state, slice, index)` over the leading dim of `batch` and update once.

    A microbatch of weight 0 is as if it had not been there, whatever its loss, gradients and metrics are. With
    `enabled` false nothing is applied.
    """
    num_microbatches = jax.tree.leaves(batch)[0].shape[0]
    gated = gate(optimizer)
    start = GateState(opt_state, no_verdict())
    if num_microbatches == 1:
        first = microbatch(params, model_state, jax.tree.map(lambda x: x[0], batch), jnp.array(0, jnp.int32))
        updates, gate_state = gated.update(first.grads, start, params, loss=first.loss, last=enabled)
        model_state = select(gate_state.verdict.applied, first.model_state, model_state)
        params = apply_updates(gate_state.verdict.applied, params, updates)
        return Accumulated(params, gate_state.inner, model_state, first.loss, first.metrics, gate_state.verdict)

    make = {"multisteps": _multisteps, "fused": _fused}[engine]
    accumulator, add, finish = make(gated, num_microbatches, params, start, enabled)
    old_model_state = model_state

    def body(carry: tuple, indexed: tuple) -> tuple[tuple, tuple[dict[str, Any], Array]]:
        accumulator, params, model_state, loss = carry
        index, slice_ = indexed
        result = microbatch(params, model_state, slice_, index)
        counts = result.loss.weight != 0
        loss = select(counts, loss.merge(result.loss), loss)
        grads = select(counts, result.grads, jax.tree.map(jnp.zeros_like, result.grads))
        accumulator, params = add(accumulator, params, grads, loss, index)
        model_state = select(counts, result.model_state, model_state)
        return (accumulator, params, model_state, loss), (result.metrics, counts)

    zero = Mean(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))
    carry, stacked = jax.lax.scan(body, (accumulator, params, model_state, zero), (jnp.arange(num_microbatches), batch))
    accumulator, params, model_state, loss = carry
    params, gate_state = finish(accumulator, params, loss)
    model_state = select(gate_state.verdict.applied, model_state, old_model_state)
    return Accumulated(params, gate_state.inner, model_state, loss, merge_stacked(*stacked), gate_state.verdict)


def _multisteps(gated: Any, num_microbatches: int, params: Params, start: GateState, enabled: Array) -> tuple:
    """`optax.MultiSteps` in sum mode. Its own state lives inside the step only, around the stored inner state.

    It calls the optimizer with every partial sum; the gate, told which microbatch is the last, lets only that one pass.
    """
    multisteps = optax.MultiSteps(gated, every_k_schedule=num_microbatches, use_grad_mean=False)
    accumulator = multisteps.init(params)._replace(inner_opt_state=start)

    def add(accumulator: Any, params: Params, grads: Params, loss: Mean, index: Array) -> tuple[Any, Params]:
        last = enabled & (index == num_microbatches - 1)
        grads = optax.tree.cast(grads, jnp.float32)  # else the sum is handed on in the parameters' precision
        updates, accumulator = multisteps.update(grads, accumulator, params, loss=loss, last=last)
        return accumulator, apply_updates(accumulator.inner_opt_state.verdict.applied, params, updates)

    return accumulator, add, lambda accumulator, params, loss: (params, accumulator.inner_opt_state)


def _fused(gated: Any, num_microbatches: int, params: Params, start: GateState, enabled: Array) -> tuple:
    """A float32 sum over the microbatches, then one update."""
    accumulator = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)

    def add(accumulator: Params, params: Params, grads: Params, loss: Mean, index: Array) -> tuple[Params, Params]:
        return jax.tree.map(jnp.add, accumulator, grads), params

    def finish(accumulator: Params, params: Params, loss: Mean) -> tuple[Params, GateState]:
        updates, gate_state = gated.update(accumulator, start, params, loss=loss, last=enabled)
        return apply_updates(gate_state.verdict.applied, params, updates), gate_state

    return accumulator, add, finish


def apply_updates(applied: Array, params: Params, updates: Params) -> Params:
    """Add `updates`, or keep every bit of `params`: adding zero would turn -0.0 into 0.0."""
    return select(applied, optax.apply_updates(params, updates), params)


def select(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """Choose one of two trees of the same structure by a scalar bool."""
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def merge_stacked(metrics: dict[str, Any], counts: Array) -> dict[str, Any]:
    """Merge metrics whose leaves are stacked over microbatches in dim 0, those of the microbatches that count.

    counts: [microbatch] bool. No neutral element is asked of a metric; if nothing counts, the first one is given.
    """
    first = jax.tree.map(lambda x: x[0], (metrics, counts))
    rest = jax.tree.map(lambda x: x[1:], (metrics, counts))

    def body(carry: tuple, item: tuple) -> tuple[tuple, None]:
        (merged, begun), (other, counts) = carry, item
        both = {name: metric.merge(other[name]) for name, metric in merged.items()}
        return (select(counts, select(begun, both, other), merged), begun | counts), None

    return jax.lax.scan(body, first, rest)[0][0]  # a loop, so that many microbatches make no larger program


def _keep_dtypes(new: PyTree, old: PyTree) -> PyTree:
    """Store a state in the precision it had: some optimizers promote that of 16-bit parameters."""
    return jax.tree.map(lambda n, o: n if n.dtype == o.dtype else n.astype(o.dtype), new, old)
