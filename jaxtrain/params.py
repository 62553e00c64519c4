"""The parameters of a run, read from one of its checkpoints: without its config, its devices or its lock."""

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtrain.checkpoint.manifest import Manifest
from jaxtrain.checkpoint.restore import read_part
from jaxtrain.checkpoint.steps import find
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

    step: a number, or "latest" for the newest checkpoint that verifies. The run may be under way.
    Raises WorkdirError where there is no run, CheckpointError where no such checkpoint verifies.
    """
    return load(workdir, step).params


def load(workdir: str | os.PathLike[str], step: int | str = "latest", abstract_state: Any = None) -> Loaded:
    """Give parameters and model state of a checkpoint, each leaf placed as in `abstract_state`.

    Without that, by what the checkpoint says of itself: NumPy arrays in dicts whose keys are the parts of their paths.
    Raises what `load_params` does, and CheckpointError for leaves that are not those of `abstract_state`.
    """
    directory = Workdir(workdir, create=False).checkpoints_dir
    found = find(directory, step)
    state = _described(found.manifest) if abstract_state is None else abstract_state
    source = evaluated(state)
    wanted = {name: getattr(state, name) for name in (source, "model_state")}
    read = read_part(directory / str(found.step), found.manifest, wanted)
    return Loaded(found.step, source, read[source], read["model_state"])


def evaluated(state: Any) -> str:
    """Name the field of a TrainState that holds the parameters to evaluate, export and generate with."""
    return "ema" if getattr(state, "ema", None) is not None else "params"


def _described(manifest: Manifest) -> SimpleNamespace:
    """Give the fields of the saved state as nested dicts of shapes, as far as these are models' fields."""
    fields: dict[str, Any] = {"params": {}, "model_state": {}}
    for name, leaf in manifest.leaves.items():
        field, *parents = name.split("/")
        if field in ("params", "model_state", "ema") and parents:
            place = fields.setdefault(field, {})
            for parent in parents[:-1]:
                place = place.setdefault(parent, {})
            place[parents[-1]] = jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype))
    return SimpleNamespace(**fields)
