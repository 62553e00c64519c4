"""Turn the gradients of a batch's microbatches into one update of the parameters.

A batch arrives as [k, batch / k, ...]: k microbatches. Each gives the gradient of its *total* loss and its weight; the
totals are added up and divided once by the summed weight, so that

    grads = sum_i d(total_i)/d(params) / sum_i weight_i

whatever k is. The division, the test for finite values and the clipping happen in a gate around the optimizer, on the
whole batch's gradient. `multisteps` lets `optax.MultiSteps` do the adding up, `fused` a plain sum; both give the same
numbers, and neither leaves an accumulator behind: `opt_state` is the optimizer's own. Over which devices the sums go,
and when, is said by a `Reduction` (reduction.py).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxtrain.metrics import Mean
from jaxtrain.reduction import EACH, Reduction, select
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
    """What one microbatch contributes: its gradients, its loss, its metrics and the model state after it.

    counts: bool, there is weight in it.
    """

    grads: Params
    loss: Mean
    metrics: dict[str, Any]
    model_state: ModelState
    counts: Array | bool = True


class Accumulated(NamedTuple):
    """A whole batch, after its update. `loss` and `metrics` are merged over its microbatches."""

    params: Params
    opt_state: optax.OptState
    model_state: ModelState
    loss: Mean
    metrics: dict[str, Any]
    verdict: Verdict


def gate(optimizer: optax.GradientTransformation, reduction: Reduction = EACH) -> optax.GradientTransformationExtraArgs:
    """Wrap `optimizer` so that it sees the mean gradient of a batch worth an update, and no other.

    `update(grads, state, params, loss=..., enabled=...)` takes the sums of the gradients and of the loss of a whole
    batch. A batch of weight 0, or with a value that is not finite, leaves the optimizer's state as it was and gives
    updates of zero; so does `enabled` false, and without a loss, in the midst of a batch, nothing is even looked at.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Params) -> GateState:
        return GateState(optimizer.init(params), no_verdict())

    def update(
        grads: Params,
        state: GateState,
        params: Params,
        *,
        loss: Mean | None = None,
        enabled: Array | bool = True,
        **extra_args: Any,
    ) -> tuple[Params, GateState]:
        if loss is None:
            return jax.tree.map(jnp.zeros_like, params), state
        grads = reduction.placed(reduction.total(grads))
        weight = jnp.where(loss.weight > 0, loss.weight, 1.0)
        grads = jax.tree.map(lambda g: g / weight, grads)  # float32, also for parameters of 16 bits
        leaf_is_finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads)])
        finite = jnp.all(leaf_is_finite) & jnp.isfinite(loss.total) & jnp.isfinite(loss.weight) & (loss.weight >= 0)
        applied = enabled & finite & (loss.weight > 0)

        def run() -> tuple[Params, optax.OptState]:
            like_params = optax.tree.cast_like(grads, params)
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
    key: Array,
    enabled: Array,
    reduction: Reduction = EACH,
) -> Accumulated:
    """Run `microbatch(params, model_state, slice, key)` over the leading dim of `batch` and update once.

    The i-th one's key is `fold_in(key, i)`. A microbatch of weight 0 is as if it had not been there, whatever its loss,
    gradients and metrics are. With `enabled` false nothing is applied.
    """
    num_microbatches = jax.tree.leaves(batch)[0].shape[0]
    gated, start = gate(optimizer, reduction), GateState(opt_state, no_verdict())
    seen, run = reduction.prepared(params), reduction.spread(_counted(microbatch))
    adder = {"multisteps": _multisteps, "fused": _fused}[engine if num_microbatches > 1 else "fused"]
    sums, add, finish = adder(gated, num_microbatches, params, start, reduction.zeros(params))

    def body(carry: tuple, indexed: tuple) -> tuple[tuple, tuple[dict[str, Any], Array]]:
        sums, loss, model_state = carry
        index, slice_ = indexed
        result = run(seen, model_state, slice_, jax.random.fold_in(key, index))
        carry = (add(sums, result.grads), loss.merge(result.loss), result.model_state)
        return carry, (result.metrics, result.counts)

    carry = (sums, reduction.zeros(Mean(jnp.zeros(()), jnp.zeros(()))), model_state)
    xs = (jnp.arange(num_microbatches), batch)
    (sums, loss, new_model_state), stacked = jax.lax.scan(body, carry, xs, unroll=num_microbatches == 1)
    loss = reduction.total(loss)
    updates, (opt_state, verdict) = finish(sums, loss=loss, enabled=enabled)
    return Accumulated(
        apply_updates(verdict.applied, params, updates),
        opt_state,
        select(verdict.applied, new_model_state, model_state),
        loss,
        reduction.merged(*stacked),
        verdict,
    )


def _counted(microbatch: Callable[..., Microbatch]) -> Callable[..., Microbatch]:
    """Give `microbatch`, which contributes nothing where it has no weight."""

    def counted(params: Params, model_state: ModelState, batch: PyTree, key: Array) -> Microbatch:
        result = microbatch(params, model_state, batch, key)
        counts = result.loss.weight != 0
        grads, loss = select(counts, (result.grads, result.loss), jax.tree.map(jnp.zeros_like, result[:2]))
        return Microbatch(grads, loss, result.metrics, select(counts, result.model_state, model_state), counts)

    return counted


def _multisteps(gated: Any, num_microbatches: int, params: Params, start: GateState, zeros: PyTree) -> tuple:
    """`optax.MultiSteps` in sum mode. Its own state lives inside the step only, around the stored inner state.

    The microbatches are its first mini-steps; one more, of zeros and after the loop, makes the optimizer run.
    """
    multisteps = optax.MultiSteps(gated, every_k_schedule=num_microbatches + 1, use_grad_mean=False)
    accumulator = multisteps.init(params)._replace(inner_opt_state=start, acc_grads=zeros)

    def add(accumulator: Any, grads: PyTree) -> Any:
        return multisteps.update(optax.tree.cast(grads, jnp.float32), accumulator, params)[1]

    def finish(accumulator: Any, **batch: Any) -> tuple[Params, GateState]:
        updates, accumulator = multisteps.update(zeros, accumulator, params, **batch)
        return updates, accumulator.inner_opt_state

    return accumulator, add, finish


def _fused(gated: Any, num_microbatches: int, params: Params, start: GateState, zeros: PyTree) -> tuple:
    """A float32 sum over the microbatches, then one update."""

    def add(sums: PyTree, grads: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, sums, grads)

    return zeros, add, lambda sums, **batch: gated.update(sums, start, params, **batch)


def apply_updates(applied: Array, params: Params, updates: Params) -> Params:
    """Add `updates`, or keep every bit of `params`: adding zero would turn -0.0 into 0.0."""
    return select(applied, optax.apply_updates(params, updates), params)


def _keep_dtypes(new: PyTree, old: PyTree) -> PyTree:
    """Store a state in the precision it had: some optimizers promote that of 16-bit parameters."""
    return jax.tree.map(lambda n, o: n if n.dtype == o.dtype else n.astype(o.dtype), new, old)
