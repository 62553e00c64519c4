"""Evaluation: every example once, whatever the batch size, the padding and the number of processes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxtrain.config import Config
from jaxtrain.data.pipeline import Loader
from jaxtrain.data.prefetch import DevicePrefetch
from jaxtrain.duration import Every
from jaxtrain.errors import ConfigError, Problem
from jaxtrain.sharding import BatchPlacer
from jaxtrain.typing import ModelState, Params

EvalStep = Callable[[Params, ModelState, Any], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One named evaluation of a run.

    example: shapes and dtypes of one example.   num_batches: how many to take, None for all.
    """

    name: str
    source: Any
    transforms: Sequence[Any]
    every: Every
    batch_size: int
    num_batches: int | None
    place: BatchPlacer
    example: Mapping[str, Any]
    prefetch: int
    seed: int

    @property
    def abstract_batch(self) -> dict[str, Any]:
        return self.place.abstract(self.example)

    def zeros(self) -> dict[str, jax.Array]:
        """A placed batch of these shapes that no example was read for."""
        rows = len(self.place.rows)
        return self.place({name: np.zeros((rows, *x.shape), x.dtype) for name, x in self.example.items()})

    def run(
        self,
        eval_step: EvalStep,
        params: Params,
        model_state: ModelState,
        should_stop: Callable[[], bool],
        begin: Callable[[], bool],
    ) -> dict[str, Any] | None:
        """Evaluate. Gives the metrics as Python numbers, or None when asked to stop before the end.

        should_stop: asked while waiting for a batch.   begin: asked before each step; False is the end too.

        Totals are float64 on the host: a sum over a large set in float32 would drop its smaller parts.
        """
        loader = Loader(
            self.source,
            self.transforms,
            batch_size=self.batch_size,
            rows=self.place.rows,
            start=0,
            seed=self.seed,
            shuffle=False,
            num_workers=0,  # threads: starting processes would cost seconds in every evaluation
            prefetch=self.prefetch,
            num_batches=self.num_batches,
            repeat=False,
            name=f"evals.{self.name}.data",
        )
        batches = DevicePrefetch(loader, self.place, depth=2)
        total: Mapping[str, Any] | None = None
        before = None  # one evaluation step runs while the one before it is added up
        try:
            while True:
                try:
                    item = batches.next(should_stop)
                except StopIteration:
                    break
                if item is None or not begin():
                    return None
                metrics = eval_step(params, model_state, item[0])
                total, before = merge_on_host(total, before), metrics
            return compute(merge_on_host(total, before))
        finally:
            batches.close()


class Evaluator:
    """Runs evaluations, compiling the step once for each shape of batch."""

    def __init__(self, compile_eval_step: Callable[[Mapping[str, Any]], EvalStep]):
        self._compile = compile_eval_step
        self._compiled: dict[Any, EvalStep] = {}
        self.metrics: dict[str, tuple[str, ...]] = {}  # the numbers of each evaluation that was checked, by its name

    def check(self, evaluation: Evaluation, params: Params, model_state: ModelState) -> None:
        """Run one batch of zeros, so that an evaluation that cannot work fails now. No example is read."""
        numbers = compute(merge_on_host(None, self._step(evaluation)(params, model_state, evaluation.zeros())))
        self.metrics[evaluation.name] = tuple(numbers)

    def run(
        self,
        evaluation: Evaluation,
        params: Params,
        model_state: ModelState,
        should_stop: Callable[[], bool] = lambda: False,
        begin: Callable[[], bool] = lambda: True,
    ) -> dict[str, Any] | None:
        """Evaluate; None when asked to stop before the end."""
        return evaluation.run(self._step(evaluation), params, model_state, should_stop, begin)

    def _step(self, evaluation: Evaluation) -> EvalStep:
        batch = evaluation.abstract_batch
        shapes = tuple(sorted((name, x.shape, str(x.dtype)) for name, x in batch.items()))
        if shapes not in self._compiled:
            self._compiled[shapes] = self._compile(batch)
        return self._compiled[shapes]


def merge_on_host(total: Mapping[str, Any] | None, metrics: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Add a batch's metrics to the totals in float64 and int64."""
    if metrics is None:
        return total
    wide = jax.tree.map(_widen, jax.device_get(metrics))
    return wide if total is None else {name: metric.merge(wide[name]) for name, metric in total.items()}


def _widen(leaf: Any) -> Any:
    array = np.asarray(leaf)
    kind = {"f": np.float64, "i": np.int64, "u": np.uint64}.get(array.dtype.kind)
    return array.astype(kind)[()] if kind else array[()]


def check_best_metric(config: Config, name: str, metrics: Any) -> None:
    """Refuse a `checkpoint.best_metric` of the evaluation `name` that its lines will not have. Raises ConfigError.

    metrics: shapes and dtypes of what the evaluation step returns.
    """
    split, _, wanted = config.checkpoint.best_metric.partition("/")
    if split != name:
        return
    known = list(compute(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype)[()], metrics)))
    if wanted not in known:
        fix = f"Use one of {', '.join(f'{name}/{number}' for number in known)}."
        allowed = "the lines of this evaluation have no such number"
        raise ConfigError([Problem("checkpoint.best_metric", config.checkpoint.best_metric, allowed, fix)])


def compute(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Turn metrics into numbers; a metric that gives several gets one entry each, `name_part`."""
    numbers: dict[str, Any] = {}
    for name, metric in (metrics or {}).items():
        value = metric.compute()
        parts = (
            {f"{name}_{part}": number for part, number in value.items()} if isinstance(value, dict) else {name: value}
        )
        numbers |= {part: np.asarray(number).item() for part, number in parts.items()}
    return numbers
