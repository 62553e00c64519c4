"""What slow and failing writers cost a run: nothing, within noise.

    python scripts/bench/writers.py [--rounds=8] [--steps=2000] [--out=docs/results/writers.json]

Runs of one small network take turns: without any writer but the console, with TensorBoard, with a tracker that takes a
second for each call, and with one that raises. Reported are the median time of a step of each kind, the median
difference to the run without writers and its 95 % bootstrap interval, and whether all losses are equal bit for bit.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxtrain import default_config, train
from jaxtrain.data.arrays import Arrays
from jaxtrain.models.mlp import MLP
from jaxtrain.tasks.classification import Classification

KINDS = ("none", "tensorboard", "slow", "raising")


class Tracker:
    """Takes `secs` for each call, or raises."""

    def __init__(self, secs: float = 0.0, raises: bool = False):
        self.secs, self.raises = secs, raises

    def write_scalars(self, step: int, split: str, scalars: Any, time_secs: float) -> None:
        """Sleep or raise."""
        time.sleep(self.secs)
        if self.raises:
            raise ConnectionError("no network")

    def write_text(self, step: int, name: str, text: str) -> None:
        """Show nothing."""

    def write_image(self, step: int, name: str, image: Any) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing is open."""


def run(kind: str, num_steps: int) -> tuple[float, list[float]]:
    """Train once. Gives the median time of a step in microseconds, and the losses."""
    rng = np.random.default_rng(0)
    image, label = rng.normal(size=(4096, 64)).astype(np.float32), rng.integers(0, 10, 4096).astype(np.int32)
    config = default_config()
    config.name = "writers"
    config.duration = f"{num_steps} steps"
    config.batch_size = 64
    config.task.type = Classification(MLP((256, 256), 10))
    config.data.type = Arrays(arrays={"image": image, "label": label})
    config.log.every = "50 steps"
    config.log.tensorboard = kind == "tensorboard"
    config.checkpoint.every = ""
    if kind in ("slow", "raising"):
        config.log.trackers.mine = {"type": Tracker(1.0) if kind == "slow" else Tracker(raises=True)}
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for line in train(config, Path(folder) / "run").history if line["split"] == "train"]
    return float(np.median([line["step_secs"] for line in lines[1:]])) * 1e6, [line["loss"] for line in lines]


def main() -> None:
    """Measure every kind by turns and print or store the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    losses = []
    for _ in range(options.rounds):
        for kind in KINDS:
            step_us, lines = run(kind, options.steps)
            times[kind].append(step_us)
            losses.append(lines)
    rng = np.random.default_rng(0)
    results = {}
    for kind in KINDS:
        differences = np.array(times[kind]) - np.array(times["none"])
        medians = np.median(rng.choice(differences, (10_000, len(differences))), axis=1)
        results[kind] = {
            "step_us": round(float(np.median(times[kind])), 1),
            "over_none_us": round(float(np.median(differences)), 1),
            "over_none_interval_us": [round(float(bound), 1) for bound in np.quantile(medians, [0.025, 0.975])],
        }
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "tensorboardX")},
        "python": platform.python_version(),
        "rounds": options.rounds,
        "steps": options.steps,
        "losses_are_equal": all(lines == losses[0] for lines in losses),
        "results": results,
    }
    print(json.dumps(report, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
