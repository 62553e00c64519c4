"""What the runs of these tests are made of, beside the product: each part can go wrong on demand."""

import dataclasses
import itertools
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.callbacks import Callback
from jaxtrain.data.arrays import Arrays
from jaxtrain.models.mlp import MLP
from jaxtrain.typing import Array


def _content(name: str) -> str:
    """The text of a file of the current directory, "" if there is none."""
    try:
        return Path(name).read_text().strip()
    except FileNotFoundError:
        return ""


class Gate(Callback):
    """Holds the run after the step that the file `hold` names, for as long as it does. `held` tells of it."""

    def on_step(self, run, step):
        while _content("hold") == str(step):
            Path("held").write_text(str(step))
            time.sleep(0.005)


class Rows(Arrays):
    """Rows of an .npz file.

    bad: rows that cannot be decoded.   nan: rows of NaN.   token, url, account: what a source that logs in would take.
    leaks: raise, in the middle of training, an error that tells all of these.
    The file `block-<split>` holds every reading of that split for as long as it exists, or those after as many as it
    says; `blocked` tells of it.
    """

    def __init__(
        self,
        path: str = "",
        split: str = "",
        bad: tuple[int, ...] = (),
        nan: tuple[int, ...] = (),
        token: str = "",
        url: str = "",
        account: Mapping[str, object] | None = None,
        leaks: bool = False,
    ):
        super().__init__(path, split=split)
        self._split, self._bad, self._nan = split, bad, nan
        self._readings = itertools.count(1)
        signature = url.rpartition("=")[2]
        self._account, self._leaks = f"token {token} at {url} of {account}, signed {signature}", leaks

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        reading, block = next(self._readings), Path(f"block-{self._split}")
        while block.exists() and reading > int(_content(block.name) or 0):
            Path("blocked").write_text(self._split)
            time.sleep(0.005)
        if self._leaks and index == 5:
            raise ConnectionError(f"cannot log in with {self._account}")
        if index in self._bad:
            raise ValueError("not an image")
        example = super().__getitem__(index)
        return {**example, "image": example["image"] * np.float32("nan")} if index in self._nan else example


class SlowToCompile(MLP):
    """XLA compiles every sort by itself: tracing these takes seconds, compiling them more than 30."""

    num_sorts: int = 1500

    @nn.compact
    def __call__(self, inputs: Array, train: bool = False) -> Array:
        x = inputs.reshape(-1)
        for number in range(self.num_sorts):
            x = jax.lax.sort(x * (number + 1.5))
        return super().__call__(inputs, train) + jax.lax.stop_gradient(x[0])


class BornNaN(MLP):
    """One parameter is not a number from its birth."""

    @nn.compact
    def __call__(self, inputs: Array, train: bool = False) -> Array:
        scale = self.param("scale", lambda key: jnp.full((3,), jnp.nan))
        return super().__call__(inputs, train) + scale


class Leaky(MLP):
    """Fails while it is traced, and tells a secret in its message."""

    @nn.compact
    def __call__(self, inputs: Array, train: bool = False) -> Array:
        raise RuntimeError(f"no weights for {os.environ['SERVICE_TOKEN']}")


@dataclasses.dataclass
class SignalWhileSaving(Callback):
    """Sends this process a signal at the moment when a step's save has begun and is not over.

    `in_flight` then holds the name of the unfinished checkpoint.
    """

    step: int

    def on_step(self, run, step):
        if step == self.step and not os.path.exists("in_flight"):
            os.kill(os.getpid(), signal.SIGTERM)
            unfinished = [path.name for path in (run.workdir / "checkpoints").glob(f"{step}.orbax*")]
            Path("in_flight").write_text(" ".join(unfinished))


@dataclasses.dataclass
class SetClock(Callback):
    """Sets the clock of this process, as a person or a time server would: `hours[i]` off from step `steps[i]` on."""

    steps: tuple[int, ...]
    hours: tuple[float, ...]

    def on_step(self, run, step):
        if step in self.steps:
            shift_clock(self.hours[self.steps.index(step)])


_true_time = time.time


def shift_clock(hours: float) -> None:
    """Let `time.time` be so many hours off."""
    time.time = lambda: _true_time() + hours * 3600
