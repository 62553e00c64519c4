"""From a config to an Experiment: all that can be known before anything is allocated.

`train`, and every tool that must look at the very step that `train` runs, starts from `assemble`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxtrain import partitioning, sharding
from jaxtrain.build import build
from jaxtrain.config import Config, schema
from jaxtrain.config.loading import describe_failure
from jaxtrain.data.first import First
from jaxtrain.data.reader import empty_batch, read_template
from jaxtrain.duration import every_of, steps_of
from jaxtrain.errors import ConfigError, DataError, JaxtrainError, Problem
from jaxtrain.evaluate import Evaluation, check_best_metric
from jaxtrain.experiment import Experiment, make_init_of
from jaxtrain.layout import make_layout
from jaxtrain.optimizers import Optimizer, make_optimizer
from jaxtrain.reduction import changed_state
from jaxtrain.step import TrainState, eval_params


def assemble(config: Config, *, devices: Sequence[Any] | None = None, autotune_dir: str = "") -> Experiment:
    """Build what a checked config describes for these devices (default: all). Allocates nothing on them.

    Raises ConfigError or DataError.
    """
    mesh = sharding.make_mesh(config.mesh, devices)
    source, transforms = _source_and_transforms(config.data, "data", config.seed)
    if config.data.num_batches:
        source = First(source, config.data.num_batches * config.batch_size)
    example = _abstract_example(source, transforms, config.seed)
    place = sharding.BatchPlacer(mesh, config.batch_size, config.accumulation.microbatches)
    abstract_batch = place.abstract(example)
    runtime = {"vocab_size": source.vocab_size} if hasattr(source, "vocab_size") else {}
    task = build(config.task, "task", **runtime)
    _check_vocabulary(task, source)
    tokens_per_example = task.tokens_per_example(example) if hasattr(task, "tokens_per_example") else None

    sizes = (config.batch_size, len(source), tokens_per_example)
    num_steps = steps_of("duration", config.duration, *sizes)
    warmup_steps = steps_of("schedule.warmup", config.schedule.warmup, *sizes) or 0
    optimizer = make_optimizer(config, num_steps, warmup_steps, _freeze_steps(config, num_steps, sizes))
    if config.accumulation.reduce == "once":
        _check_shards_are_independent(config, task, abstract_batch)
    abstract_state, sharded_by = _abstract_state(config, mesh, task, optimizer, abstract_batch)
    experiment = Experiment(
        config=config,
        mesh=mesh,
        source=source,
        transforms=transforms,
        task=task,
        optimizer=optimizer,
        num_steps=num_steps,
        tokens_per_example=tokens_per_example,
        place=place,
        abstract_batch=abstract_batch,
        abstract_state=abstract_state,
        sharded_by=sharded_by,
        evaluations=(),
        log_every=every_of("log.every", config.log.every, *sizes),
        checkpoint_every=every_of("checkpoint.every", config.checkpoint.every, *sizes),
        autotune_dir=autotune_dir,
    )
    evaluations = [_evaluation(experiment, name, spec, example) for name, spec in config.evals.items()]
    return dataclasses.replace(experiment, evaluations=tuple(evaluations))


def _freeze_steps(config: Config, num_steps: int | None, sizes: tuple[int, int, int | None]) -> dict[str, int]:
    """Give the steps for which each group is frozen that is so for a while."""
    found = {}
    for name, group in config.param_groups.items():
        key = f"param_groups.{name}.freeze_for"
        if steps := steps_of(key, group.freeze_for, *sizes):
            found[name] = steps
        if steps and num_steps is not None and steps >= num_steps:
            allowed = f"these {steps} steps are the whole run of {num_steps}"
            raise ConfigError([Problem(key, group.freeze_for, allowed, "Use less, or freeze=true.")])
    return found


def _source_and_transforms(data: schema.Data | schema.EvalData, key: str, seed: int) -> tuple[Any, list[Any]]:
    """Build a source and its transforms."""
    source = build(data, key, seed=seed)
    if len(source) == 0:
        raise DataError(f"--config.{key}: {data.type} holds no examples. Check its files and its split.")
    return source, [build(spec, f"{key}.transforms.{name}", seed=seed) for name, spec in data.transforms.items()]


def _abstract_example(source: Any, transforms: Sequence[Any], seed: int) -> dict[str, Any]:
    """Shapes and dtypes of one example as the task will see it."""
    batch = empty_batch(read_template(source, transforms, seed), 1)
    return {
        name: jax.ShapeDtypeStruct(x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype)) for name, x in batch.items()
    }


def _check_vocabulary(task: Any, source: Any) -> None:
    """Refuse data with tokens that the model has no embedding for: their loss would be NaN."""
    known, present = getattr(getattr(task, "model", None), "vocab_size", None), getattr(source, "vocab_size", None)
    if isinstance(known, int) and isinstance(present, int) and present > known:
        allowed = f"the data has {present} different tokens, more than the model"
        fix = f"Use --config.task.model.vocab_size={present}, or leave the key away: it is then taken from the data."
        raise ConfigError([Problem("task.model.vocab_size", known, allowed, fix)])


def _abstract_state(
    config: Config, mesh: jax.sharding.Mesh, task: Any, optimizer: Optimizer, abstract_batch: Mapping[str, Any]
) -> tuple[TrainState, dict[str, str]]:
    """Trace the making of the state, which traces the loss: a wrong key or shape fails here, in a second.

    Also gives who said how each parameter is sharded.
    """
    init = make_init_of(config, mesh, task, optimizer)
    microbatch = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in abstract_batch.items()}
    abstract = _trace("task.type", config.task.type, microbatch, init, jax.random.key(config.seed), abstract_batch)
    optimizer.groups.check(abstract.params)
    traced_init = make_layout(mesh, config.sharding).traced(task.init)
    boxed, _ = jax.eval_shape(traced_init, jax.random.key(config.seed), microbatch)
    named = partitioning.annotations(boxed)
    shardings = partitioning.state_shardings(mesh, abstract, optimizer.transformation, config.sharding, named)
    placed = partitioning.place_params(mesh, abstract.params, config.sharding, named)
    return sharding.with_shardings(abstract, shardings), {path: placement.by for path, placement in placed.items()}


def _check_shards_are_independent(config: Config, task: Any, abstract_batch: Mapping[str, Any]) -> None:
    """Refuse what would be another loss if each shard of a microbatch were alone in it."""
    microbatch = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in abstract_batch.items()}
    what = ""
    if getattr(task, "batch_coupled", False):
        what = f"the loss of {config.task.type} couples the examples of a batch (batch_coupled)"
    elif changed := changed_state(task, microbatch):
        what = f"the loss changes the model state with each batch, as batch statistics: {', '.join(changed[:3])}"
    if what:
        allowed = f"{what}, so it is not the sum of the losses of a batch's shards"
        raise ConfigError([Problem("accumulation.reduce", "once", allowed, "Use --config.accumulation.reduce=each.")])


def _trace(key: str, value: Any, batch: Mapping[str, Any], function: Any, *arguments: Any) -> Any:
    """Give the shapes of what `function` returns. What it makes of `batch` may fail: a ConfigError names the arrays."""
    try:
        return jax.eval_shape(function, *arguments)
    except JaxtrainError:
        raise
    except Exception as error:  # whatever the user's code does with shapes that it did not expect
        shapes = ", ".join(f"{name}: {x.dtype}{list(x.shape)}" for name, x in batch.items())
        allowed = f"the loss cannot be computed on a batch of these arrays: {shapes}"
        raise ConfigError([Problem(key, value, allowed, describe_failure(error))]) from error


def _evaluation(experiment: Experiment, name: str, spec: schema.Eval, example: Mapping[str, Any]) -> Evaluation:
    config = experiment.config
    source, transforms = _source_and_transforms(spec.data, f"evals.{name}.data", config.seed)
    if hasattr(source, "zeros") and not transforms:  # else as in training: no example is read before its time
        example = _abstract_example(source, transforms, config.seed)
    batch_size = spec.batch_size or config.batch_size
    place = sharding.BatchPlacer(experiment.mesh, batch_size, None)
    state, batch = experiment.abstract_state, place.abstract(example)
    step = experiment.eval_step()
    metrics = _trace(
        f"evals.{name}.data.type", spec.data.type, batch, step, eval_params(state), state.model_state, batch
    )
    check_best_metric(config, name, metrics)
    return Evaluation(
        name=name,
        source=source,
        transforms=transforms,
        every=experiment.every(f"evals.{name}.every", spec.every),
        batch_size=batch_size,
        num_batches=spec.num_batches or None,
        place=place,
        example=example,
        prefetch=config.data.prefetch,
        seed=config.seed,
    )
