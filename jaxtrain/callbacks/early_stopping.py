"""Early stopping: end the run when an evaluation has not got better for a while."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxtrain.callbacks.callback import Callback, Run
from jaxtrain.config import Config
from jaxtrain.errors import ConfigError, Problem


class EarlyStopping(Callback):
    """End the run once `patience` evaluations in a row were not better than the best before them.

    eval_name, metric: the number to watch.   mode: "min" or "max", which is better.   min_delta: by how much a value
    must beat the best to count as better. NaN never does.

    Nothing is stored: the values are those of metrics.jsonl, so a resumed run ends at the step at which an
    uninterrupted one would have.
    """

    def __init__(
        self,
        config: Config,
        eval_name: str = "validation",
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        patience: int = 3,
        min_delta: float = 0.0,
    ):
        if eval_name not in config.evals:
            raise ValueError(
                f"eval_name={eval_name!r} is none of the evals: {', '.join(config.evals) or 'there are none'}"
            )
        if not config.evals[eval_name].every:
            raise ValueError(f"the eval {eval_name!r} runs only after the last step; set evals.{eval_name}.every")
        if patience < 1 or not min_delta >= 0:
            raise ValueError(f"patience={patience} must be 1 or more, min_delta={min_delta} 0 or more")
        self.eval_name, self.metric, self.mode = eval_name, metric, mode
        self.patience, self.min_delta = patience, min_delta
        self._values: list[float] = []

    def on_start(self, run: Run) -> None:
        known = run.eval_metrics[self.eval_name]
        if self.metric not in known:
            allowed = f"metric={self.metric!r} is no number of the eval {self.eval_name!r}; it has {', '.join(known)}"
            raise ConfigError([Problem("callbacks", "EarlyStopping", allowed)])
        self._values = [line[self.metric] for line in run.history(self.eval_name)]
        self._judge(run)  # the launch before may have been killed between its last evaluation and its end

    def on_eval(self, run: Run, step: int, name: str, scalars: Mapping[str, Any]) -> None:
        if name == self.eval_name:
            self._values.append(scalars[self.metric])
            self._judge(run)

    def _judge(self, run: Run) -> None:
        num_worse = evaluations_since_best(self._values, self.mode, self.min_delta)
        if num_worse >= self.patience:
            best = self._values[-1 - num_worse] if num_worse < len(self._values) else float("nan")
            run.stop(
                f"early stopping: {self.metric} of {self.eval_name} was {best:.6g} at best, "
                f"and no better in {num_worse} evaluations since"
            )


def evaluations_since_best(values: Sequence[float], mode: str = "min", min_delta: float = 0.0) -> int:
    """Count the values after the last one that beat every earlier best by more than `min_delta`.

    The first finite or infinite value is a best; NaN never is, so n of nothing but NaN give n.
    """
    sign = 1 if mode == "min" else -1
    best, since = None, 0
    for value in values:
        is_better = value == value if best is None else sign * value < best - min_delta
        best, since = (sign * value, 0) if is_better else (best, since + 1)
    return since
