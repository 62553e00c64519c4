"""From a config to the objects and programs of a run: all that can be known before anything is allocated.

`train`, and every tool that must look at the very step that `train` runs, starts from `assemble`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxtrain import flops, partitioning, sharding
from jaxtrain.build import build
from jaxtrain.checkpoint import Checkpoints, best
from jaxtrain.compiling import compile_ahead, compile_traced, compiler_options, trace_ahead
from jaxtrain.config import Config, config_hash, schema
from jaxtrain.config.loading import describe_failure
from jaxtrain.data.pipeline import Loader
from jaxtrain.data.reader import empty_batch, read_template
from jaxtrain.duration import Duration, Every
from jaxtrain.errors import ConfigError, DataError, JaxtrainError, Problem
from jaxtrain.evaluate import Evaluation, check_best_metric
from jaxtrain.optimizers import Optimizer, make_optimizer
from jaxtrain.step import TrainState, drain, make_eval_step, make_init, make_train_step, zeros_like
from jaxtrain.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The objects that a config describes.

    num_steps: the last step; None when the duration is a time.
    place: puts a batch onto the devices.   abstract_batch, abstract_state: shapes, dtypes and shardings.
    sharded_by: path of a parameter -> who said how it is sharded; "" for automatic FSDP.
    """

    config: Config
    mesh: jax.sharding.Mesh
    source: Any
    transforms: Sequence[Any]
    task: Any
    optimizer: Optimizer
    num_steps: int | None
    tokens_per_example: int | None
    place: sharding.BatchPlacer
    abstract_batch: Mapping[str, Any]
    abstract_state: TrainState
    sharded_by: Mapping[str, str]
    evaluations: Sequence[Evaluation]
    log_every: Every
    checkpoint_every: Every
    autotune_dir: str

    @property
    def max_secs(self) -> float | None:
        """The duration, when it is a time."""
        duration = Duration.parse(self.config.duration)
        return duration.secs if duration is not None and duration.is_time else None

    def open_checkpoints(self, workdir: Workdir) -> Checkpoints:
        """Open the checkpoints of a run of this experiment."""
        checkpoint = self.config.checkpoint
        told_by = (workdir.metrics_path, checkpoint.best_metric, checkpoint.best_mode)
        return Checkpoints(
            workdir.checkpoints_dir,
            keep_last=checkpoint.keep_last,
            keep_every=self.every("checkpoint.keep_every", checkpoint.keep_every).due,
            keep_best=functools.partial(best.best_steps, *told_by, checkpoint.keep_best),
            config_hash=config_hash(self.config),
        )

    def every(self, key: str, text: str) -> Every:
        """Give the predicate of an `every` of this config. Raises ConfigError for a unit that means nothing here."""
        return _every(key, text, self.config.batch_size, len(self.source), self.tokens_per_example)

    def loader(self, position: int, num_bad: int = 0) -> Loader:
        """Give the batches of training from a position in the data on; `num_bad` examples before it were bad."""
        data = self.config.data
        return Loader(
            self.source,
            self.transforms,
            batch_size=self.config.batch_size,
            rows=self.place.rows,
            start=position,
            seed=self.config.seed,
            shuffle=data.shuffle,
            num_workers=data.num_workers,
            prefetch=data.prefetch,
            max_bad_examples=data.max_bad_examples,
            num_bad=num_bad,
        )

    @functools.cached_property
    def _shardings(self) -> TrainState:
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

    @property
    def _compiler_options(self) -> dict[str, Any]:
        platform = self.mesh.devices.flat[0].platform
        return compiler_options(platform, self.config.deterministic, self.autotune_dir)

    def init_state(self) -> TrainState:
        """Make the state before step 1, sharded from its birth."""
        init = make_init(self.task, self.optimizer.transformation, params_dtype=self.config.precision.params)
        batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in self.abstract_batch.items()}
        make = jax.jit(lambda key: init(key, zeros_like(batch)), out_shardings=self._shardings)
        return make(jax.device_put(jax.random.key(self.config.seed), sharding.replicated(self.mesh)))

    @functools.cached_property
    def traced_train_step(self) -> Any:
        """The program of a step before it is compiled, `train_step(state, batch) -> (state, metrics)`."""
        out_shardings = (self._shardings, sharding.replicated(self.mesh))
        arguments = (self.train_step(), self.abstract_state, self.abstract_batch)
        return trace_ahead(*arguments, donate_argnums=(0,), out_shardings=out_shardings)

    def compile_train_step(self) -> Any:
        """Compile `train_step(state, batch) -> (state, metrics)`. The state is donated."""
        return compile_traced(self.traced_train_step, self._compiler_options)

    def step_flops(self) -> flops.Flops:
        """Count the FLOPs of a step, over all devices."""
        return flops.count(self.traced_train_step.jaxpr)

    def train_step(self) -> Any:
        """Give the function that `compile_train_step` compiles."""
        nonfinite = self.config.nonfinite
        return make_train_step(
            self.task,
            self.optimizer.transformation,
            learning_rate=self.optimizer.learning_rate,
            engine=self.config.accumulation.engine,
            compute_dtype=self.config.precision.compute,
            nonfinite_limit=1 if nonfinite.policy == "stop" else nonfinite.limit,
        )

    def compile_eval_step(self, abstract_batch: Mapping[str, Any]) -> Any:
        """Compile `eval_step(params, model_state, batch) -> metrics` for batches of one shape."""
        return compile_ahead(
            make_eval_step(self.task, compute_dtype=self.config.precision.compute),
            self.abstract_state.params,
            self.abstract_state.model_state,
            abstract_batch,
            out_shardings=sharding.replicated(self.mesh),
            options=self._compiler_options,
        )

    def compile_drain(self) -> Any:
        """Compile `drain(interval, counters)`, which a log point calls."""
        state = self.abstract_state
        return compile_ahead(drain, state.interval, state.counters, out_shardings=sharding.replicated(self.mesh))


def assemble(config: Config, *, devices: Sequence[Any] | None = None, autotune_dir: str = "") -> Experiment:
    """Build what a checked config describes for these devices (default: all). Allocates nothing on them.

    Raises ConfigError or DataError.
    """
    mesh = sharding.make_mesh(config.mesh, devices)
    source, transforms = _examples(config.data, "data", config.seed)
    example = _example(source, transforms, config.seed)
    place = sharding.BatchPlacer(mesh, config.batch_size, config.accumulation.microbatches)
    abstract_batch = place.abstract(example)
    runtime = {"vocab_size": source.vocab_size} if hasattr(source, "vocab_size") else {}
    task = build(config.task, "task", **runtime)
    _check_vocabulary(task, source)
    tokens_per_example = task.tokens_per_example(example) if hasattr(task, "tokens_per_example") else None

    sizes = (config.batch_size, len(source), tokens_per_example)
    num_steps = _steps("duration", config.duration, *sizes)
    optimizer = make_optimizer(config, num_steps, _steps("schedule.warmup", config.schedule.warmup, *sizes) or 0)
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
        log_every=_every("log.every", config.log.every, *sizes),
        checkpoint_every=_every("checkpoint.every", config.checkpoint.every, *sizes),
        autotune_dir=autotune_dir,
    )
    evaluations = [_evaluation(experiment, name, spec, example) for name, spec in config.evals.items()]
    return dataclasses.replace(experiment, evaluations=tuple(evaluations))


def _examples(data: schema.Data | schema.EvalData, key: str, seed: int) -> tuple[Any, list[Any]]:
    """Build a source and its transforms."""
    source = build(data, key, seed=seed)
    if len(source) == 0:
        raise DataError(f"--config.{key}: {data.type} holds no examples. Check its files and its split.")
    return source, [build(spec, f"{key}.transforms.{name}", seed=seed) for name, spec in data.transforms.items()]


def _example(source: Any, transforms: Sequence[Any], seed: int) -> dict[str, Any]:
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


def _every(key: str, text: str, batch_size: int, num_examples: int, tokens_per_example: int | None) -> Every:
    try:
        return Every(Duration.parse(text), batch_size, num_examples, tokens_per_example)
    except ValueError as error:
        raise ConfigError([Problem(key, text, str(error), "Use steps, epochs or examples.")]) from error


def _steps(key: str, text: str, batch_size: int, num_examples: int, tokens_per_example: int | None) -> int | None:
    duration = Duration.parse(text)
    if duration is None or duration.is_time:
        return None
    try:
        return duration.steps(batch_size, num_examples, tokens_per_example)
    except ValueError as error:
        raise ConfigError([Problem(key, text, str(error), "Use steps, epochs or examples.")]) from error


def _abstract_state(
    config: Config, mesh: jax.sharding.Mesh, task: Any, optimizer: Optimizer, abstract_batch: Mapping[str, Any]
) -> tuple[TrainState, dict[str, str]]:
    """Trace the making of the state, which traces the loss: a wrong key or shape fails here, in a second.

    Also gives who said how each parameter is sharded.
    """
    init = make_init(task, optimizer.transformation, params_dtype=jnp.dtype(config.precision.params))
    microbatch = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in abstract_batch.items()}
    abstract = _trace("task.type", config.task.type, microbatch, init, jax.random.key(config.seed), abstract_batch)
    boxed, _ = jax.eval_shape(task.init, jax.random.key(config.seed), microbatch)
    named = partitioning.annotations(boxed)
    shardings = partitioning.state_shardings(mesh, abstract, optimizer.transformation, config.sharding, named)
    placed = partitioning.place_params(mesh, abstract.params, config.sharding, named)
    return sharding.with_shardings(abstract, shardings), {path: by for path, (_, by) in placed.items()}


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
    source, transforms = _examples(spec.data, f"evals.{name}.data", config.seed)
    if hasattr(source, "zeros") and not transforms:  # else as in training: no example is read before its time
        example = _example(source, transforms, config.seed)
    batch_size = spec.batch_size or config.batch_size
    place = sharding.BatchPlacer(experiment.mesh, batch_size, None)
    state, batch = experiment.abstract_state, place.abstract(example)
    step = make_eval_step(experiment.task, compute_dtype=config.precision.compute)
    metrics = _trace(f"evals.{name}.data.type", spec.data.type, batch, step, state.params, state.model_state, batch)
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
