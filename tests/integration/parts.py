"""A model and callbacks of the runs of this directory."""

import os
import time
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jaxtrain import Callback


class Classifier(nnx.Module):
    """A convolution with batch statistics and dropout."""

    def __init__(self, features: int, dropout: float, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, features, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(features, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.head = nnx.Linear(features, 2, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        features = nnx.relu(self.norm(self.conv(images))).mean((1, 2))
        return self.head(self.dropout(features))


class Telling(Callback):
    """Tells the step just made in the file `<workdir>.step`, and waits `secs` before the next."""

    def __init__(self, secs: float = 0.0):
        self.secs = secs

    def on_step(self, run: Any, step: int) -> None:
        path = told_path(run.workdir)
        new = path.with_suffix(".new")
        new.write_text(str(step))
        os.replace(new, path)  # so that a reader sees a whole number
        time.sleep(self.secs)


def told_path(workdir: Path) -> Path:
    return workdir.with_suffix(".step")


class CrashError(Exception):
    """Raised by Crashing, and by nobody else."""


class Crashing(Callback):
    """Ends the run with an exception after a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step(self, run: Any, step: int) -> None:
        if step == self.step:
            raise CrashError
