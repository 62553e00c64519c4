"""One training step and one evaluation step, as pure functions of a state and a batch.

`make_train_step` is all that a loop of your own needs:

    train_step = jax.jit(make_train_step(task, optimizer), donate_argnums=0)
    state, metrics = train_step(state, batch)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jaxtrain import accumulation
from jaxtrain.accumulation import Microbatch, Verdict
from jaxtrain.metrics import Mean
from jaxtrain.param_groups import FOREVER
from jaxtrain.reduction import EACH, Reduction, select
from jaxtrain.tasks.task import Task
from jaxtrain.typing import Array, Batch, ModelState, Params, PyTree

# The keys of a train line that are not the task's.
RESERVED_METRICS = frozenset(
    [
        *("step", "time", "split", "loss", "grad_norm", "learning_rate", "skipped", "empty", "bad_examples"),
        *("step_secs", "data_wait_secs", "examples_per_sec", "examples_seen", "tokens_per_sec", "tokens_seen", "mfu"),
    ]
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counters:
    """What became of the batches that were not applied; int32 unless said otherwise.

    skipped: batches dropped because a loss or gradient was not finite.   empty: batches of weight 0.
    in_a_row: skipped batches since the last applied one.   halted: bool, no update is applied any more.
    bad_step, bad_leaf: the step of the first skipped batch of the row, and its first non-finite leaf among the
    gradients (-1: only the loss was not finite).
    """

    skipped: Array
    empty: Array
    in_a_row: Array
    halted: Array
    bad_step: Array
    bad_leaf: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Interval:
    """Metrics merged over the applied steps since the last line of the log. num_steps: int32, how many those are."""

    num_steps: Array
    metrics: dict[str, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that training continues from. Data only: no functions, nothing of the host.

    step: int32, batches consumed.   key: the run's PRNG key; it never changes, steps fold their number into it.
    ema: float32, the moving average of `params`; None if there is none.
    """

    step: Array
    params: Params
    model_state: ModelState
    opt_state: optax.OptState
    key: Array
    counters: Counters
    interval: Interval
    ema: Params | None = None


def make_init(
    task: Task, optimizer: optax.GradientTransformation, *, params_dtype: Any = jnp.float32, ema: bool = False
) -> Callable[..., TrainState]:
    """Give `init(key, batch, weights=None)`, which makes the state before step 1.

    ema: keep a moving average of the parameters, which starts as they are.
    batch: one of the run's, [k, batch / k, ...].   weights: (params, model_state) to take, with None for each leaf that
    is to be new; whatever else in the state begins with the parameters begins with these.
    """

    def init(key: Array, batch: Batch, weights: tuple[Params, ModelState] | None = None) -> TrainState:
        microbatch = jax.tree.map(lambda x: x[0], batch)
        params, model_state = task.init(jax.random.fold_in(key, 0), microbatch)
        params = cast(nn.unbox(params), params_dtype)  # without the annotations that partitioning.py reads
        if weights is not None:
            params, model_state = jax.tree.map(
                lambda given, new: new if given is None else given,
                weights,
                (params, model_state),
                is_leaf=lambda leaf: leaf is None,
            )
        output = zeros_like(jax.eval_shape(lambda: task.loss(params, model_state, microbatch, key, True)))
        metrics = _step_metrics(output.loss, output.metrics, jnp.zeros(()), jnp.zeros(()))

        def zero() -> Array:
            return jnp.zeros((), jnp.int32)  # an array of its own for each leaf, so that the state can be donated

        return TrainState(
            step=zero(),
            params=params,
            model_state=model_state,
            opt_state=optimizer.init(params),
            key=jax.random.clone(key),  # the caller's outlives a donated state
            counters=Counters(zero(), zero(), zero(), jnp.array(False), zero(), zero()),
            interval=Interval(zero(), zeros_like(metrics)),
            ema=start_ema(params) if ema else None,
        )

    return init


def start_ema(params: Params) -> Params:
    """Give the moving average before the first update: the parameters themselves, as float32 arrays of their own."""
    return jax.tree.map(lambda param: jnp.array(param, jnp.float32), params)


def update_ema(ema: Params, params: Params, decay: float) -> Params:
    """Give the moving average after an update that led to `params`.

        ema = decay * ema + (1 - decay) * params

    (Polyak and Juditsky 1992, https://doi.org/10.1137/0330046, with weights that fall off exponentially). It starts at
    the initial parameters, not at 0, and so needs no correction; after n updates these weigh decay^n. Computed as
    ema + (1 - decay) * (params - ema), which leaves the average of a parameter that does not move as it is.
    """
    return jax.tree.map(lambda e, p: e + (1 - decay) * (p.astype(jnp.float32) - e), ema, params)


def eval_source(state: TrainState) -> str:
    """Name the field with the parameters to evaluate, sample and export: the average, if the state keeps one."""
    return "params" if state.ema is None else "ema"


def eval_params(state: TrainState) -> Params:
    """Give the parameters to evaluate with."""
    return getattr(state, eval_source(state))


def nothing_frozen(params: Params) -> PyTree:
    """Say of each parameter that it is trained from the first step on."""
    return jax.tree.map(lambda _: 0, params)


def make_train_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    learning_rate: Callable[[Array], Array] = lambda updates: jnp.full_like(updates, jnp.nan, jnp.float32),
    engine: str = "multisteps",
    reduction: Reduction = EACH,
    compute_dtype: Any = jnp.float32,
    nonfinite_limit: int = 1,
    frozen: Callable[[Params], PyTree] = nothing_frozen,
    ema_decay: float = 0.0,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]:
    """Give `train_step(state, batch) -> (state, metrics)`.

    Every leaf of `batch` is [k, batch / k, ...]; k microbatches make one update (see accumulation.py). `metrics` holds
    the step's own, unmerged: "loss", the task's, "grad_norm" (before clipping) and "learning_rate" (what
    `learning_rate(updates)` says, for the log only). The `nonfinite_limit`-th batch in a row with a value that is not
    finite halts the state: later steps consume batches and change nothing else. `frozen(params)` gives for how many
    steps each parameter keeps every bit: its gradients are 0 until then and count in no norm; with FOREVER they are not
    even computed. `ema_decay`: of `update_ema`, where the state has an average.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        step = state.step + 1
        step_key = jax.random.fold_in(state.key, step)
        held = _held(frozen(state.params), step)

        def microbatch(params: Params, model_state: ModelState, batch: Batch, key: Array) -> Microbatch:
            return _gradients(task, params, model_state, batch, key, compute_dtype, held)

        parts = (state.params, state.opt_state, state.model_state)
        enabled = ~state.counters.halted
        done = accumulation.accumulate(microbatch, optimizer, engine, *parts, batch, step_key, enabled, reduction)
        updates = state.step - state.counters.skipped - state.counters.empty
        metrics = _step_metrics(done.loss, done.metrics, done.verdict.grad_norm, learning_rate(updates))
        params = _hold(held, state.params, done.params)
        state = TrainState(
            step=step,
            params=params,
            model_state=done.model_state,
            opt_state=done.opt_state,
            key=state.key,
            counters=_count(state.counters, step, done.loss.weight, done.verdict, nonfinite_limit),
            interval=_extend(state.interval, metrics, done.verdict.applied),
            ema=_average(state.ema, params, ema_decay, done.verdict.applied),
        )
        return state, metrics

    return train_step


def _average(ema: Params | None, params: Params, decay: float, applied: Array) -> Params | None:
    return None if ema is None else select(applied, update_ema(ema, params, decay), ema)


def _held(frozen: PyTree, step: Array) -> PyTree:
    """Say of each parameter whether it stays as it is in this step: True, False, or a bool known when the step runs."""
    return jax.tree.map(lambda steps: steps == FOREVER or (steps > 0 and step <= steps), frozen)


def _hold(held: PyTree, old: Params, new: Params) -> Params:
    """Keep what is held: not even adding zero leaves every bit, of -0.0 and of subnormal numbers, as it was."""
    return jax.tree.map(_choose, held, old, new)


def _choose(held: bool | Array, old: Array, new: Array) -> Array:
    return jnp.where(held, old, new) if isinstance(held, Array) else old if held else new


def _gradients(
    task: Task, params: Params, model_state: ModelState, batch: Batch, key: Array, compute_dtype: Any, held: PyTree
) -> Microbatch:
    """Differentiate the total loss of a microbatch by the parameters as they are stored, but for those held."""

    def total_loss(params: Params) -> tuple[Array, Any]:
        params = jax.tree.map(lambda keep, x: jax.lax.stop_gradient(x) if keep is True else x, held, params)
        output = task.loss(cast(params, compute_dtype), model_state, batch, key, True)
        return output.loss.total, output

    grads, output = jax.grad(total_loss, has_aux=True)(params)
    grads = jax.tree.map(lambda keep, grad: _choose(keep, jnp.zeros_like(grad), grad), held, grads)
    return Microbatch(grads, output.loss, output.metrics, output.model_state)


def make_eval_step(
    task: Task, *, compute_dtype: Any = jnp.float32
) -> Callable[[Params, ModelState, Batch], dict[str, Any]]:
    """Give `eval_step(params, model_state, batch) -> metrics`: "loss" and the task's. `batch` is [batch, ...]."""

    def eval_step(params: Params, model_state: ModelState, batch: Batch) -> dict[str, Any]:
        output = task.loss(cast(params, compute_dtype), model_state, batch, jax.random.key(0), False)
        return {"loss": output.loss, **output.metrics}

    return eval_step


def drain(interval: Interval, counters: Counters) -> tuple[Interval, Counters]:
    """Give an empty interval to go on with, and a copy of the counters that outlives the state they are part of."""
    return zeros_like(interval), jax.tree.map(jnp.copy, counters)


def _step_metrics(loss: Mean, task_metrics: dict[str, Any], grad_norm: Array, learning_rate: Array) -> dict[str, Any]:
    clash = sorted(RESERVED_METRICS & task_metrics.keys())
    if clash:
        raise ValueError(f"a metric of the task is named {clash[0]!r}, as a number of the trainer's own; rename it")
    one = jnp.ones((), jnp.float32)
    return {
        "loss": loss,
        **task_metrics,
        "grad_norm": Mean(grad_norm, one),
        "learning_rate": Mean(jnp.asarray(learning_rate, jnp.float32), one),
    }


def _count(old: Counters, step: Array, weight: Array, verdict: Verdict, nonfinite_limit: int) -> Counters:
    """Tell a skipped batch from an empty one, and halt at the limit."""
    empty = (weight == 0) & ~old.halted
    skipped = ~verdict.finite & ~empty & ~old.halted
    in_a_row = jnp.where(skipped, old.in_a_row + 1, jnp.where(verdict.applied, 0, old.in_a_row))
    begins = skipped & (old.in_a_row == 0)
    return Counters(
        skipped=old.skipped + skipped,
        empty=old.empty + empty,
        in_a_row=in_a_row,
        halted=old.halted | (in_a_row >= nonfinite_limit),
        bad_step=jnp.where(begins, step, old.bad_step),
        bad_leaf=jnp.where(begins, verdict.bad_leaf, old.bad_leaf),
    )


def _extend(interval: Interval, metrics: dict[str, Any], applied: Array) -> Interval:
    """Merge the metrics of an applied step; those of any other are not part of a mean."""
    merged = {name: metric.merge(metrics[name]) for name, metric in interval.metrics.items()}
    merged = select(interval.num_steps == 0, metrics, merged)  # so that a metric needs no neutral element
    return Interval(interval.num_steps + applied, select(applied, merged, interval.metrics))


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """Convert the floating-point leaves of a tree."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def zeros_like(tree: PyTree) -> PyTree:
    """Zeros of the shapes and dtypes of a tree of arrays or `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)
