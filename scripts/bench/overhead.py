"""What the loop of `train` costs over the shortest loops that call the same compiled step.

    python scripts/bench/overhead.py [--blocks=60] [--steps=200] [--cores=1] [--step_us=1000]
                                     [--out=docs/results/overhead.json]

Three loops take turns in blocks of steps, so that drift of the machine hits all: `Loop.make_steps` as `train` runs it
(data pipeline, log points, `metrics.jsonl`, TensorBoard, console, a line every block); the shortest loop over
the same examples, which hands rows of NumPy arrays to the step,

    for rows in batches:
        state, metrics = step(state, {name: array[rows] for name, array in arrays.items()})

and the same loop over one batch that is on the device already, which reads nothing at all. Both wait for the step two
before, as `train` does. A block's figure is the difference of two loops in microseconds per step; reported are the
median and its 95 % bootstrap interval. Everything runs on one core, so that no work hides beside the step: the first
figure holds all that `train` does more than read the data, the second that as well. An accelerator hides most of both.

The models are a small linen network, one of 24 blocks, and this one in nnx, which is measured against the shortest
loops over its twin in linen. They are made as wide as it takes for a step of about `--step_us`, on whichever machine.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import itertools
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
from jaxtrain.assembly import assemble
from jaxtrain.callbacks import Callback, Callbacks, Run
from jaxtrain.check import checked
from jaxtrain.data.arrays import Arrays
from jaxtrain.data.prefetch import DevicePrefetch
from jaxtrain.pace import Pace
from jaxtrain.tasks.classification import Classification
from jaxtrain.timeline import Timeline
from jaxtrain.train import Loop

NUM_FEATURES = 16
WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256)
NUM_EXAMPLES = 4096


class LinenBlocks(nn.Module):
    """A residual network of `num_blocks` dense layers."""

    num_blocks: int
    width: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        hidden = nn.Dense(self.width)(inputs)
        for _ in range(self.num_blocks):
            hidden = hidden + nn.Dense(self.width)(nn.relu(hidden))
        return nn.Dense(10)(hidden)


class NnxBlock(nnx.Module):
    """One block of `NnxBlocks`."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.dense = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        return hidden + self.dense(nnx.relu(hidden))


class NnxBlocks(nnx.Module):
    """The same network as `LinenBlocks`."""

    def __init__(self, num_blocks: int, width: int, rngs: nnx.Rngs):
        self.first = nnx.Linear(NUM_FEATURES, width, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(width, rngs) for _ in range(num_blocks)])
        self.last = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)


class Block(Callback):
    """Ends `make_steps` after some steps, without the last line and checkpoint of a run that is over."""

    last_step = 0

    def on_step(self, run: Run, step: int) -> None:
        """Stop at the end of the block."""
        if step >= self.last_step:
            run.stop("the block is over")


def make_arrays() -> dict[str, np.ndarray]:
    """Make random examples."""
    rng = np.random.default_rng(0)
    return {
        "image": rng.normal(size=(NUM_EXAMPLES, NUM_FEATURES)).astype(np.float32),
        "label": rng.integers(0, 10, NUM_EXAMPLES).astype(np.int32),
    }


def make_config(model: Any, batch_size: int, num_steps: int, block: Block) -> Any:
    """Describe a run of this model, with every output a run has by default."""
    config = default_config()
    config.name = "overhead"
    config.duration = "1000000 steps"
    config.optimizer.type = "optax:sgd"
    config.batch_size = batch_size
    config.task.type = Classification(model)
    config.data.type = Arrays(arrays=make_arrays())
    config.log.every = f"{num_steps} steps"
    config.checkpoint.every = ""
    config.callbacks.block = {"type": block}
    return config


def open_raw_loop(model: Any, batch_size: int) -> "RawLoop":
    """Compile the step of this model for the shortest loops."""
    return RawLoop(assemble(checked(make_config(model, batch_size, 1, Block()))))


def find_width(num_blocks: int, batch_size: int, step_us: float) -> int:
    """Give the width at which a step of the linen network takes nearest to `step_us`."""
    found = {}
    for width in WIDTHS:
        raw = open_raw_loop(LinenBlocks(num_blocks, width), batch_size)
        raw.run_constant(20)
        started = time.perf_counter()
        raw.run_constant(100)
        found[width] = (time.perf_counter() - started) / 100 * 1e6
        if found[width] > step_us:
            break
    return min(found, key=lambda width: abs(found[width] - step_us))


def measure(model: Any, twin: Any, batch_size: int, num_blocks: int, num_steps: int) -> dict[str, Any]:
    """Run `train`'s loop over `model` and the shortest ones over `twin` by turns. Gives microseconds per step."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        block = Block()
        config = checked(make_config(model, batch_size, num_steps, block))
        here = stack.enter_context(session.opened(config, Path(folder) / "run", None))
        experiment = assemble(config)
        here.begin(config, {}, 0)
        pace = Pace(experiment.num_steps, None)
        checkpoints = stack.enter_context(contextlib.closing(experiment.open_checkpoints(here.workdir)))
        batches = stack.enter_context(contextlib.closing(DevicePrefetch(experiment.loader(0), experiment.place)))
        state = experiment.init_state()
        callbacks = Callbacks(experiment, here.workdir.path, state)
        loop = Loop(experiment, checkpoints, here, resume.Start(), pace, state, batches, callbacks, Timeline())
        stack.enter_context(contextlib.closing(loop))
        raw = open_raw_loop(twin, batch_size)

        def ours(steps: int) -> None:
            block.last_step = pace.step + steps
            loop.make_steps()
            callbacks.run.stop_reason = None
            here.crew.reset()
            jax.block_until_ready(loop.state)

        loops = {"train": ours, "reading": raw.run_reading, "constant": raw.run_constant}
        for run in loops.values():
            run(num_steps)
        times: dict[str, list[float]] = {name: [] for name in loops}
        orders = list(itertools.permutations(loops))  # who follows whom matters as well
        for number in range(num_blocks):
            for name in orders[number % len(orders)]:
                started = time.perf_counter()
                loops[name](num_steps)
                times[name].append((time.perf_counter() - started) / num_steps * 1e6)
        return {**summary(times), "num_leaves": len(jax.tree.leaves(experiment.abstract_state))}


class RawLoop:
    """The shortest loops over a compiled step."""

    def __init__(self, experiment: Any):
        self.step = experiment.compile_train_step()
        self.state = experiment.init_state()
        self.arrays = {**make_arrays(), "mask": np.ones(NUM_EXAMPLES, bool)}
        self.batch_size = experiment.config.batch_size
        self.order = np.random.default_rng(0).permutation(NUM_EXAMPLES)
        self.batch = jax.device_put(self.read(0), experiment.place.sharding)

    def read(self, number: int) -> Any:
        """Read a batch, which the step places: that is faster than `jax.device_put`."""
        start = number * self.batch_size % (NUM_EXAMPLES - self.batch_size)
        rows = self.order[start : start + self.batch_size]
        return {name: array[rows][None] for name, array in self.arrays.items()}

    def run_reading(self, steps: int) -> None:
        """Make steps on the examples, and wait for the last."""
        self.run(self.read, steps)

    def run_constant(self, steps: int) -> None:
        """Make steps on one batch, and wait for the last."""
        self.run(lambda number: self.batch, steps)

    def run(self, read: Any, steps: int) -> None:
        """Make steps."""
        state, in_flight = self.state, deque()
        for number in range(steps):
            state, metrics = self.step(state, read(number))
            in_flight.append(metrics["loss"].total)
            if len(in_flight) > 2:
                in_flight.popleft().block_until_ready()
        self.state = jax.block_until_ready(state)


def summary(times: dict[str, list[float]]) -> dict[str, Any]:
    """Give the median of each loop, and of the differences with 95 % bootstrap intervals."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {f"{name}_us": round(float(np.median(values)), 1) for name, values in times.items()}
    for name in ("reading", "constant"):
        differences = np.array(times["train"]) - np.array(times[name])
        medians = np.median(rng.choice(differences, (10_000, len(differences))), axis=1)
        found[f"over_{name}_us"] = round(float(np.median(differences)), 1)
        found[f"over_{name}_interval_us"] = [round(float(bound), 1) for bound in np.quantile(medians, [0.025, 0.975])]
    return found


def processor() -> str:
    """Name the processor, where the system tells."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Measure every model and print or store the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--step_us", type=float, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    small, wide = find_width(4, 64, options.step_us), find_width(24, 16, options.step_us)
    deep = LinenBlocks(24, wide)
    models = {
        f"linen, 4 blocks of {small}": (LinenBlocks(4, small), LinenBlocks(4, small), 64),
        f"linen, 24 blocks of {wide}": (deep, deep, 16),
        f"nnx, 24 blocks of {wide}": (lambda rngs: NnxBlocks(24, wide, rngs), deep, 16),
    }
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{options.cores} of {os.cpu_count()} cores, {processor()}",
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "grain")},
        "python": platform.python_version(),
        "blocks": options.blocks,
        "steps_per_block": options.steps,
        "results": {},
    }
    for name, (model, twin, batch_size) in models.items():
        report["results"][name] = measure(model, twin, batch_size, options.blocks, options.steps)
        print(name, json.dumps(report["results"][name]), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
