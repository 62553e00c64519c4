"""The objects that a config describes, and the programs made of them. assembly.py builds one."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import flops, sharding
from jaxtrain.checkpoint import Checkpoints, best
from jaxtrain.compiling import compile_ahead, compile_traced, compiler_options, trace_ahead
from jaxtrain.config import Config, config_hash
from jaxtrain.data.pipeline import Loader
from jaxtrain.duration import Duration, Every, every_of
from jaxtrain.evaluate import Evaluation
from jaxtrain.layout import Layout, make_layout
from jaxtrain.optimizers import Optimizer
from jaxtrain.reduction import Once, Reduction
from jaxtrain.step import TrainState, drain, eval_params, make_eval_step, make_init, make_train_step, zeros_like
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

    @property
    def depends_on_time(self) -> bool:
        """Is anything due by the clock?"""
        schedules = [self.log_every, self.checkpoint_every, *(evaluation.every for evaluation in self.evaluations)]
        return self.max_secs is not None or any(every.is_time for every in schedules)

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
        return every_of(key, text, self.config.batch_size, len(self.source), self.tokens_per_example)

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

    @functools.cached_property
    def layout(self) -> Layout:
        """What the names of dims stand for, while programs are traced."""
        return make_layout(self.mesh, self.config.sharding)

    @property
    def compiler_options(self) -> dict[str, Any]:
        """XLA's options for every program of this run."""
        platform = self.mesh.devices.flat[0].platform
        return compiler_options(platform, self.config.deterministic, self.autotune_dir)

    def init_state(self, weights: Any = None) -> TrainState:
        """Make the state before step 1, sharded from its birth. weights: of `init` (step.py); they are consumed."""
        init = make_init_of(self.config, self.mesh, self.task, self.optimizer)
        batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in self.abstract_batch.items()}
        make = jax.jit(
            lambda seed, weights: init(jax.random.key(seed), zeros_like(batch), weights),
            out_shardings=self._shardings,
            donate_argnums=1,
        )
        return make(np.uint32(self.config.seed), weights)

    @functools.cached_property
    def traced_train_step(self) -> Any:
        """The program of a step before it is compiled, `train_step(state, batch) -> (state, metrics)`."""
        out_shardings = (self._shardings, sharding.replicated(self.mesh))
        arguments = (self.train_step(), self.abstract_state, self.abstract_batch)
        return trace_ahead(*arguments, donate_argnums=(0,), out_shardings=out_shardings)

    def compile_train_step(self) -> Any:
        """Compile `train_step(state, batch) -> (state, metrics)`. The state is donated."""
        return compile_traced(self.traced_train_step, self.compiler_options)

    def step_flops(self) -> flops.Flops:
        """Count the FLOPs of a step, over all devices."""
        return flops.count(self.traced_train_step.jaxpr)

    def train_step(self) -> Any:
        """Give the function that `compile_train_step` compiles."""
        nonfinite = self.config.nonfinite
        step = make_train_step(
            self.task,
            self.optimizer.transformation,
            learning_rate=self.optimizer.learning_rate,
            engine=self.config.accumulation.engine,
            reduction=self.reduction,
            compute_dtype=self.config.precision.compute,
            nonfinite_limit=1 if nonfinite.policy == "stop" else nonfinite.limit,
            frozen=self.optimizer.groups.frozen,
            ema_decay=self.config.ema.decay,
        )
        return self.layout.traced(step)

    def eval_step(self) -> Any:
        """Give the function that `compile_eval_step` compiles."""
        return self.layout.traced(make_eval_step(self.task, compute_dtype=self.config.precision.compute))

    @property
    def reduction(self) -> Reduction:
        """When gradients meet and parameters are gathered."""
        accumulation = self.config.accumulation
        options = (self._shardings.params, self.config.precision.compute, accumulation.gather == "once")
        return Once(*options, mesh=self.mesh) if accumulation.reduce == "once" else Reduction(*options)

    def compile_eval_step(self, abstract_batch: Mapping[str, Any]) -> Any:
        """Compile `eval_step(params, model_state, batch) -> metrics` for batches of one shape."""
        return compile_ahead(
            self.eval_step(),
            eval_params(self.abstract_state),
            self.abstract_state.model_state,
            abstract_batch,
            out_shardings=sharding.replicated(self.mesh),
            options=self.compiler_options,
        )

    def compile_drain(self) -> Any:
        """Compile `drain(interval, counters)`, which a log point calls."""
        state = self.abstract_state
        return compile_ahead(drain, state.interval, state.counters, out_shardings=sharding.replicated(self.mesh))


def make_init_of(config: Config, mesh: jax.sharding.Mesh, task: Any, optimizer: Optimizer) -> Any:
    """Give the function that makes the state before step 1."""
    params_dtype = jnp.dtype(config.precision.params)
    init = make_init(task, optimizer.transformation, params_dtype=params_dtype, ema=config.ema.decay > 0)
    return make_layout(mesh, config.sharding).traced(init)
