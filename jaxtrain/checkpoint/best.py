"""Which checkpoints are best: by one number of the evaluations of their steps, as metrics.jsonl holds it.

A checkpoint commits before its step is evaluated, so its score cannot be in it. The lines of metrics.jsonl survive a
kill, and a resumed run cuts off those after the step that it resumes from: retention, and whoever asks for the best
step later, read the same record. Scores that are not finite are none.
"""

import math
from collections.abc import Collection
from pathlib import Path

from jaxtrain.errors import CheckpointError
from jaxtrain.writers.jsonl import read_lines


def scores(metrics_path: Path, metric: str) -> dict[int, float]:
    """Give step -> score. metric: a split and a number of its lines, "validation/loss". Raises OSError."""
    split, _, name = metric.partition("/")
    found = {}
    for line in read_lines(metrics_path, split):
        value = line.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            found[line["step"]] = float(value)
    return found


def best_steps(metrics_path: Path, metric: str, mode: str, count: int, saved: Collection[int]) -> list[int]:
    """List the best of the `saved` steps that have a score, at most `count`, the best one first.

    mode: "min" or "max". Of equal scores the earlier step is the better one. Raises OSError.
    """
    known = scores(metrics_path, metric) if count else {}
    sign = 1 if mode == "min" else -1
    return sorted((step for step in saved if step in known), key=lambda step: (sign * known[step], step))[:count]


def best_step(metrics_path: Path, metric: str, mode: str, saved: Collection[int]) -> int:
    """Give the best of the `saved` steps. Raises CheckpointError where no metric is set or none has a score."""
    if not metric:
        raise CheckpointError(
            "No checkpoint is the best one: the run has no metric to tell. Set --config.checkpoint.best_metric=, "
            'such as "validation/loss".'
        )
    try:
        found = best_steps(metrics_path, metric, mode, 1, saved)
    except FileNotFoundError:
        found = []
    if not found:
        steps = ", ".join(map(str, sorted(saved))) or "none"
        raise CheckpointError(
            f"No checkpoint is the best one: {metrics_path} has no finite {metric} of a step that is saved ({steps})."
        )
    return found[0]
