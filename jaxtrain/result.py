"""What a call of `train` gives back."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from jaxtrain.step import TrainState
from jaxtrain.writers.jsonl import RESERVED


@dataclasses.dataclass(frozen=True)
class Result:
    """How a call of `train` ended.

    status: "finished", or "preempted" when it stopped early and the same call resumes it.   step: the last one made.
    state: the TrainState after it; None if there was nothing left to do.
    history: the lines of metrics.jsonl, those of earlier launches too.
    """

    status: str
    step: int
    state: TrainState | None = dataclasses.field(repr=False)  # long: a notebook shows what a cell ends with
    history: list[dict[str, Any]] = dataclasses.field(repr=False)
    workdir: Path

    def curve(self, split: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Give what to plot of one number: steps [lines] int64, values [lines] float64.

        split: "train" or the name of an evaluation. Raises KeyError with the names there are.
        """
        lines = [line for line in self.history if line["split"] == split and name in line]
        if not lines:
            known = sorted({f"{line['split']}/{key}" for line in self.history for key in line if key not in RESERVED})
            raise KeyError(f"{split}/{name} is in no line; there are {', '.join(known)}")
        return np.array([line["step"] for line in lines], np.int64), np.array([float(line[name]) for line in lines])
