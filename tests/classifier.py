"""A tiny classifier trained in this process, for the tests of the loop and of what surrounds it."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtrain import default_config, resume, session
from jaxtrain.assembly import assemble
from jaxtrain.callbacks import Callback, Callbacks
from jaxtrain.check import checked
from jaxtrain.config import parse
from jaxtrain.data.arrays import Arrays
from jaxtrain.data.prefetch import DevicePrefetch
from jaxtrain.experiment import Experiment
from jaxtrain.models.mlp import MLP
from jaxtrain.pace import Pace
from jaxtrain.tasks.classification import Classification
from jaxtrain.timeline import Timeline
from jaxtrain.train import Loop


def rows(num_rows: int = 52, seed: int = 0) -> Arrays:
    """Random inputs of three classes."""
    rng = np.random.default_rng(seed)
    image, label = rng.normal(size=(num_rows, 4)), rng.integers(3, size=num_rows)
    return Arrays(arrays={"image": image.astype(np.float32), "label": label.astype(np.int32)})


ROWS = rows()


def make_config(**changes: Any) -> Any:
    """12 steps of 8 examples, without evaluations; `changes` are top-level keys."""
    config = default_config()
    config.duration = "12 steps"
    config.batch_size = 8
    config.data.type = ROWS
    config.task.type = Classification(MLP((8,), 3))
    config.log.every = "4 steps"
    config.log.tensorboard = False
    for key, value in changes.items():
        config[key] = value
    return config


def on_one_device(config: Any) -> Experiment:
    """Build what `config` describes for the first device alone."""
    return assemble(parse(config).checked(), devices=jax.devices()[:1])


@contextlib.contextmanager
def opened_loop(config: Any, workdir: Path, num_devices: int | None = None) -> Iterator[Loop]:
    """A loop before its first step, on all devices or the first few."""
    with contextlib.ExitStack() as stack:
        experiment = assemble(parse(config).checked(), devices=jax.devices()[:num_devices])
        here = stack.enter_context(session.opened(experiment.config, workdir, None))
        here.begin(experiment.config, {}, 0)
        checkpoints = stack.enter_context(contextlib.closing(experiment.open_checkpoints(here.workdir)))
        pace = Pace(experiment.num_steps, experiment.max_secs)
        batches = stack.enter_context(contextlib.closing(DevicePrefetch(experiment.loader(0), experiment.place)))
        state = experiment.init_state()
        callbacks = Callbacks(experiment, workdir, state)
        loop = Loop(experiment, checkpoints, here, resume.Start(), pace, state, batches, callbacks, Timeline())
        yield stack.enter_context(contextlib.closing(loop))


def without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl without what depends on the clock."""
    return {name: value for name, value in line.items() if name != "time" and not name.endswith(("_secs", "_per_sec"))}


def split_steps(history: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """What each line is of."""
    return [(line["split"], line["step"]) for line in history]


def saved_steps(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


@dataclasses.dataclass
class Recorder(Callback):
    """Notes every call, with what the workdir held at that moment."""

    events: list[tuple] = dataclasses.field(default_factory=list)
    lines: list[int] = dataclasses.field(default_factory=list)
    saves: list[set[str]] = dataclasses.field(default_factory=list)

    def note(self, run, *event):
        self.events.append(event)
        self.lines.append((run.workdir / "metrics.jsonl").read_bytes().count(b"\n"))
        self.saves.append({path.name.partition(".")[0] for path in (run.workdir / "checkpoints").iterdir()})

    def on_start(self, run):
        self.note(run, "start")

    def on_step(self, run, step):
        self.note(run, "step", step)

    def on_log(self, run, step, scalars):
        self.note(run, "log", step)

    def on_checkpoint(self, run, step):
        self.note(run, "checkpoint", step)

    def on_eval(self, run, step, name, scalars):
        self.note(run, "eval", step, name)

    def on_end(self, run):
        self.note(run, "end")

    def on_error(self, run, error):
        self.note(run, "error", type(error))


@dataclasses.dataclass
class At(Callback):
    """Calls `do(run)` after a step, or in that step's evaluation `name`."""

    step: int
    do: Any
    name: str = ""

    def on_step(self, run, step):
        if step == self.step and not self.name:
            self.do(run)

    def on_eval(self, run, step, name, scalars):
        if (step, name) == (self.step, self.name):
            self.do(run)


def checked_config(**changes: Any) -> Any:
    """The typed config of `make_config`."""
    return checked(make_config(**changes))
