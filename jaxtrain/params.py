"""The parameters of a run, read from one of its checkpoints: without its config, its devices or its lock."""

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtrain.checkpoint.best import best_step
from jaxtrain.checkpoint.manifest import Manifest
from jaxtrain.checkpoint.restore import read_part
from jaxtrain.checkpoint.steps import find
from jaxtrain.checkpoint.verify import numbered
from jaxtrain.step import eval_source
from jaxtrain.typing import ModelState, Params
from jaxtrain.workdir import Workdir


class Loaded(NamedTuple):
    """What a model needs of the checkpoint of a step. `source`: the field of the state that `params` come from."""

    step: int
    source: str
    params: Params
    model_state: ModelState


def load_params(workdir: str | os.PathLike[str], step: int | str = "latest") -> Params:
    """Give the parameters of a run as nested dicts of NumPy arrays: their average (EMA), if the run keeps one.

    step: a number, "latest" for the newest checkpoint that verifies, or "best" for the best that is kept by the run's
    `checkpoint.best_metric`. The run may be under way.
    Raises WorkdirError where there is no run, CheckpointError where no such checkpoint verifies.
    """
    return load(workdir, step).params


def load(workdir: str | os.PathLike[str], step: int | str = "latest", abstract_state: Any = None) -> Loaded:
    """Give parameters and model state of a checkpoint, each leaf placed as in `abstract_state`.

    Without that, by what the checkpoint says of itself: NumPy arrays in dicts whose keys are the parts of their paths.
    Raises what `load_params` does, and CheckpointError for leaves that are not those of `abstract_state`.
    """
    run = Workdir(workdir, create=False)
    directory = run.checkpoints_dir
    found = find(directory, _best_step(run) if step == "best" else step)
    state = _described(found.manifest) if abstract_state is None else abstract_state
    source = eval_source(state)
    wanted = {name: getattr(state, name) for name in (source, "model_state")}
    read = read_part(directory / str(found.step), found.manifest, wanted)
    return Loaded(found.step, source, read[source], read["model_state"])


def _best_step(run: Workdir) -> int:
    """Give the checkpoint that is best by the metric of the run's own config."""
    checkpoint = (run.read_config() or {}).get("checkpoint", {})
    saved = numbered(run.checkpoints_dir) if run.checkpoints_dir.is_dir() else ()
    return best_step(run.metrics_path, checkpoint.get("best_metric", ""), checkpoint.get("best_mode", ""), saved)


def _described(manifest: Manifest) -> Any:
    """Give the fields of the saved state as nested dicts of shapes, as far as these are models' fields."""
    fields: dict[str, Any] = {"params": {}, "model_state": {}, "ema": None}
    for name, leaf in manifest.leaves.items():
        field, *parents = name.split("/")
        if field in fields and parents:
            place = fields[field] = fields[field] or {}
            for parent in parents[:-1]:
                place = place.setdefault(parent, {})
            place[parents[-1]] = jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype))
    return SimpleNamespace(**fields)
