"""Comparing runs: the lines and the final state of one that something happened to with those of an undisturbed one."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.checkpoint import Checkpoints
from jaxtrain.writers.jsonl import read_lines

COMMAND = ("--config=tiny.py", "--workdir=w")
ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).parent
_OF_THE_CLOCK = {"time", "step_secs", "data_wait_secs", "examples_per_sec"}


def set_up(directory: Path, num_rows: int = 50) -> None:
    """Put the config and its data into a directory."""
    shutil.copy(_HERE / "tiny.py", directory)
    rng = np.random.default_rng(0)
    image, label = rng.normal(size=(num_rows, 5)), rng.integers(3, size=num_rows)
    np.savez(directory / "rows.npz", image=image.astype("float32"), label=label.astype("int32"))


def status(workdir: Path) -> dict:
    return json.loads((workdir / "status.json").read_text())


def saved_steps(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


def lines(workdir: Path) -> list[dict]:
    """The lines of metrics.jsonl as text, without what depends on the clock."""
    return [
        {name: json.dumps(value) for name, value in line.items() if name not in _OF_THE_CLOCK}
        for line in read_lines(workdir / "metrics.jsonl")
    ]


def state(workdir: Path, step: int) -> Mapping[str, np.ndarray]:
    """Every leaf of a checkpoint, which has to verify."""
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=10)
    found = json.loads((workdir / "checkpoints" / str(step) / "manifest.json").read_text())
    abstract = {
        name: jax.ShapeDtypeStruct(tuple(leaf["shape"]), _dtype(leaf["dtype"]))
        for name, leaf in found["leaves"].items()
    }
    restored = checkpoints.restore(step, abstract)
    checkpoints.close()
    return {
        name: np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for name, leaf in restored.items()
    }


def assert_same_run(workdir: Path, reference: Path, step: int = 12, without: Iterable[tuple[str, int]] = ()) -> None:
    """Every line and the state after `step` are equal, bit for bit. `without`: (split, step) of lines that are lost."""
    lost = set(without)
    expected = [line for line in lines(reference) if (json.loads(line["split"]), int(line["step"])) not in lost]
    assert lines(workdir) == expected
    assert status(workdir)["state"] == "finished"
    ours, theirs = state(workdir, step), state(reference, step)
    assert ours.keys() == theirs.keys()
    for name, leaf in theirs.items():
        assert ours[name].tobytes() == leaf.tobytes(), name


def hold(directory: Path, step: int) -> None:
    """Let the runs in this directory stop after that step until `release`."""
    (directory / "hold").write_text(str(step))


def is_held(directory: Path, step: int) -> bool:
    held = directory / "held"
    return held.exists() and held.read_text() == str(step)


def release(directory: Path) -> None:
    (directory / "hold").unlink()


def values_that_work(message: str) -> list[str]:
    """The values after "Use" in a message, as in "Use 96 or 104."."""
    return re.findall(r"[\w.=-]*\d", message.partition("Use ")[2].partition(",")[0])


def _dtype(name: str):
    return jax.random.key(0).dtype if name.startswith("key<") else jnp.dtype(name)
