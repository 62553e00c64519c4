"""What the loop of `train` costs over the shortest loop that calls the same compiled step.

    python scripts/bench/overhead.py [--blocks=40] [--steps=200] [--out=docs/results/overhead.json]

Two loops take turns in blocks of steps, so that drift of the machine hits both: `Loop.make_steps` as `train` runs it
(data pipeline, log points, `metrics.jsonl`, TensorBoard, console), and

    for _ in range(steps):
        state, metrics = step(state, batch)

with one batch that is on the device already, waiting for the step two before, as the other does. A block's figure is
the difference of the pair in microseconds per step; reported are the median and its 95 % bootstrap interval. The models
are a small linen MLP whose step takes about a millisecond, and a residual network of 24 blocks in linen and in nnx.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

from jaxtrain import default_config, resume, session
from jaxtrain.callbacks import Callbacks
from jaxtrain.check import checked
from jaxtrain.data.arrays import Arrays
from jaxtrain.data.prefetch import DevicePrefetch
from jaxtrain.experiment import assemble
from jaxtrain.pace import Pace
from jaxtrain.tasks.classification import Classification
from jaxtrain.timeline import Timeline
from jaxtrain.train import Loop

WIDTH = 64


class LinenBlocks(nn.Module):
    """A residual network of `num_blocks` blocks of two dense layers."""

    num_blocks: int
    width: int = WIDTH

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        hidden = nn.Dense(self.width)(inputs)
        for _ in range(self.num_blocks):
            hidden = hidden + nn.Dense(self.width)(nn.relu(nn.Dense(self.width)(nn.LayerNorm()(hidden))))
        return nn.Dense(10)(hidden)


class NnxBlock(nnx.Module):
    """One block of `NnxBlocks`."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, width, rngs=rngs)
        self.down = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        return hidden + self.down(nnx.relu(self.up(self.norm(hidden))))


class NnxBlocks(nnx.Module):
    """The same network as `LinenBlocks`."""

    def __init__(self, num_blocks: int, rngs: nnx.Rngs, width: int = WIDTH):
        self.first = nnx.Linear(WIDTH, width, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(width, rngs) for _ in range(num_blocks)])
        self.last = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)


def make_config(model: Any, batch_size: int) -> Any:
    """Describe a run of this model on random arrays, with every output a run has by default."""
    rng = np.random.default_rng(0)
    arrays = {
        "image": rng.normal(size=(4096, WIDTH)).astype(np.float32),
        "label": rng.integers(0, 10, 4096).astype(np.int32),
    }
    config = default_config()
    config.name = "overhead"
    config.duration = "1000000 steps"
    config.batch_size = batch_size
    config.task.type = Classification(model)
    config.data.type = Arrays(arrays=arrays)
    config.log.every = "100 steps"
    config.checkpoint.every = ""
    return config


def measure(model: Any, batch_size: int, num_blocks: int, num_steps: int) -> dict[str, Any]:
    """Run the two loops by turns. Gives microseconds per step."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = checked(make_config(model, batch_size))
        here = stack.enter_context(session.opened(config, Path(folder) / "run", None))
        experiment = assemble(config)
        here.begin(config, {}, 0)
        pace = Pace(0, None)
        checkpoints = stack.enter_context(contextlib.closing(experiment.open_checkpoints(here.workdir)))
        batches = stack.enter_context(contextlib.closing(DevicePrefetch(experiment.loader(0), experiment.place)))
        state = experiment.init_state()
        callbacks = Callbacks(experiment, here.workdir.path, state)
        loop = Loop(experiment, checkpoints, here, resume.Start(), pace, state, batches, callbacks, Timeline())
        stack.enter_context(contextlib.closing(loop))
        raw = RawLoop(loop.train_step, experiment)

        def ours(steps: int) -> None:
            pace.num_steps = pace.step + steps
            loop.make_steps()
            jax.block_until_ready(loop.state)

        ours(num_steps), raw.run(num_steps)
        times: dict[str, list[float]] = {"train": [], "raw": []}
        for block in range(num_blocks):
            for name, run in (("train", ours), ("raw", raw.run))[:: 1 if block % 2 else -1]:
                started = time.perf_counter()
                run(num_steps)
                times[name].append((time.perf_counter() - started) / num_steps * 1e6)
        return {**summary(times), "num_leaves": len(jax.tree.leaves(experiment.abstract_state))}


class RawLoop:
    """The shortest loop over the same compiled step."""

    def __init__(self, step: Any, experiment: Any):
        self.step = step
        self.state = experiment.init_state()
        loader = experiment.loader(0)
        self.batch = experiment.place(next(loader).arrays)
        loader.close()

    def run(self, num_steps: int) -> None:
        """Make steps and wait for the last."""
        state, in_flight = self.state, deque()
        for _ in range(num_steps):
            state, metrics = self.step(state, self.batch)
            in_flight.append(metrics["loss"].total)
            if len(in_flight) > 2:
                in_flight.popleft().block_until_ready()
        self.state = jax.block_until_ready(state)


def summary(times: dict[str, list[float]]) -> dict[str, Any]:
    """Median difference of the pairs and its 95 % bootstrap interval."""
    differences = np.array(times["train"]) - np.array(times["raw"])
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(differences, (10_000, len(differences))), axis=1)
    return {
        "raw_us": round(float(np.median(times["raw"])), 1),
        "train_us": round(float(np.median(times["train"])), 1),
        "overhead_us": round(float(np.median(differences)), 1),
        "interval_us": [round(float(bound), 1) for bound in np.quantile(medians, [0.025, 0.975])],
    }


def main() -> None:
    """Measure every model and print or store the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    models = {
        "linen, 2 blocks": (LinenBlocks(2), 512),
        "linen, 24 blocks": (LinenBlocks(24), 32),
        "nnx, 24 blocks": (lambda rngs: NnxBlocks(24, rngs), 32),
    }
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "grain")},
        "python": platform.python_version(),
        "blocks": options.blocks,
        "steps_per_block": options.steps,
        "results": {},
    }
    for name, (model, batch_size) in models.items():
        report["results"][name] = measure(model, batch_size, options.blocks, options.steps)
        print(name, json.dumps(report["results"][name]), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
