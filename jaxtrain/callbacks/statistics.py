"""Statistics of gradients, updates and parameters, by group, as additional numbers of train lines."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxtrain import sharding
from jaxtrain.callbacks.callback import Callback, Run
from jaxtrain.compiling import compile_ahead
from jaxtrain.experiment import Experiment
from jaxtrain.param_groups import path_of
from jaxtrain.step import TrainState
from jaxtrain.typing import Array, Batch, Params, PyTree

KINDS = ("grads", "updates", "params")


class Statistics(Callback):
    """Add `KIND/GROUP/norm`, `mean`, `std` and `max_abs` to the train line of each due step.

    KIND is of `kinds`: "grads", the batch's mean gradient before clipping; "updates", what the optimizer makes of it;
    "params", what they are added to. GROUP is the first part of a parameter's path. Gradients and updates of a batch
    that is not applied are 0.
    every: "" for every train line, or a multiple of `log.every`.

    The step that trains stays as it is. At a due step a program of its own, compiled at the start, makes the same step
    before it and gives away only these numbers. With "grads" or "updates" that costs the time of one more step, and
    the memory of one more set of updates while it runs; with "params" alone one pass over them.
    """

    def __init__(self, experiment: Experiment, every: str = "", kinds: tuple[str, ...] = KINDS):
        log = experiment.config.log.every
        self.every = experiment.every("callbacks", every) if every else experiment.log_every
        if not self.every.falls_on(experiment.log_every):
            raise ValueError(
                f"every={every!r} must be a multiple of log.every={log!r}, which must be steps or examples"
            )
        if not kinds or not set(kinds) <= set(KINDS):
            raise ValueError(f"kinds={kinds} must be some of {', '.join(KINDS)}")
        self.kinds = kinds
        self._experiment = experiment
        self._program: Callable[[TrainState, Batch], dict[str, Array]]

    def on_start(self, run: Run) -> None:
        experiment = self._experiment
        self._program = compile_ahead(
            make_statistics(experiment, self.kinds),
            experiment.abstract_state,
            experiment.abstract_batch,
            out_shardings=sharding.replicated(experiment.mesh),
            options=experiment.compiler_options,
        )

    def on_batch(self, run: Run, step: int, batch: Batch) -> None:
        if self.every.due(step):
            run.add_scalars(self._program(run.state, batch))


class Recorded(NamedTuple):
    """An optimizer's own state, and what passed through it last."""

    inner: optax.OptState
    grads: Params
    updates: Params


def recording(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer so that its state also holds the last gradient and updates."""
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Params) -> Recorded:
        return record(optimizer.init(params), params)

    def update(grads: Params, state: Recorded, params: Params | None = None, **extra_args: Any) -> tuple:
        updates, inner = optimizer.update(grads, state.inner, params, **extra_args)
        return updates, Recorded(inner, grads, updates)

    return optax.GradientTransformationExtraArgs(init, update)


def record(opt_state: optax.OptState, params: Params) -> Recorded:
    """Give the state of `recording(optimizer)` before anything has passed."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Recorded(opt_state, zeros, zeros)


def make_statistics(experiment: Experiment, kinds: tuple[str, ...]) -> Callable[[TrainState, Batch], dict[str, Array]]:
    """Give `statistics(state, batch) -> {"grads/Dense_0/norm": scalar}` of the step that `batch` makes of `state`."""
    optimizer = dataclasses.replace(experiment.optimizer, transformation=recording(experiment.optimizer.transformation))
    train_step = dataclasses.replace(experiment, optimizer=optimizer).train_step()

    def statistics(state: TrainState, batch: Batch) -> dict[str, Array]:
        recorder = dataclasses.replace(state, opt_state=record(state.opt_state, state.params))
        recorded = train_step(recorder, batch)[0].opt_state
        trees = {"grads": recorded.grads, "updates": recorded.updates, "params": state.params}
        return {name: value for kind in kinds for name, value in summarize(kind, trees[kind]).items()}

    return statistics


def summarize(kind: str, tree: PyTree) -> dict[str, Array]:
    """Give norm, mean, standard deviation and largest magnitude over all elements of each group, in float32."""
    groups: dict[str, list[Array]] = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        if leaf.size:
            group = path_of(path[:1]) or "all"
            groups.setdefault(group, []).append(leaf.astype(jnp.float32))
    numbers: dict[str, Array] = {}
    for group, leaves in groups.items():
        size = sum(leaf.size for leaf in leaves)
        mean = jnp.asarray(sum(jnp.sum(leaf) for leaf in leaves) / size)
        numbers |= {
            f"{kind}/{group}/norm": optax.tree.norm(leaves),
            f"{kind}/{group}/mean": mean,
            f"{kind}/{group}/std": jnp.sqrt(sum(jnp.sum((leaf - mean) ** 2) for leaf in leaves) / size),
            f"{kind}/{group}/max_abs": jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves])),
        }
    return numbers
