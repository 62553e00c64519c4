"""Parameters as safetensors beside the run's config, for programs that know nothing of jaxtrain."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jaxtrain import files
from jaxtrain.checkpoint import leaves
from jaxtrain.errors import EXIT_NO, JaxtrainError, StorageError, WorkdirError
from jaxtrain.params import load
from jaxtrain.workdir import Workdir

TENSORS, CONFIG = "model.safetensors", "config.json"


class NotEqualError(JaxtrainError):
    """What was written reads back as something else."""

    exit_code = EXIT_NO


def export(workdir: str | os.PathLike[str], directory: str | os.PathLike[str], step: int | str = "latest") -> int:
    """Write a checkpoint's parameters and config into a new `directory`. Gives the step.

    model.safetensors: each parameter by its path, "block/dense/kernel", in its own dtype; what else the model keeps is
    below "model_state/".   config.json: as in the workdir.

    The directory gets its name only once everything in it was read back and is bit for bit as in the checkpoint. Raises
    WorkdirError for a directory that exists, CheckpointError, StorageError, or NotEqualError.
    """
    target = Path(directory).absolute()
    if target.exists():
        raise WorkdirError(f"{target} exists. Nothing was written: name a new directory with --out=.")
    config = Workdir(workdir, create=False).read_config() or {}
    loaded = load(workdir, step)
    named = leaves.named(loaded.params) | leaves.named({"model_state": loaded.model_state})
    arrays = {name: np.asarray(leaf) for name, leaf in named.items()}
    metadata = {"step": str(loaded.step), "source": loaded.source}
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        _write_tensors(draft / TENSORS, arrays, metadata)
        files.replace_json(draft / CONFIG, config)
        draft.rename(target)
        files.sync_directory(target.parent)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{target} could not be written: {error}. Nothing is left of it.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return loaded.step


def _write_tensors(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write a safetensors file, read it back and compare. Raises OSError or NotEqualError."""
    save_file(arrays, path, metadata)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    found = load_file(path)
    differing = [name for name, array in arrays.items() if not _same_bits(array, found.get(name))]
    if differing or len(found) != len(arrays):
        names = ", ".join(differing[:5]) or "the number of arrays"
        raise NotEqualError(f"{path.name} does not read back as it was written: {names}. Nothing is left of it.")


def _same_bits(one: np.ndarray, other: Any) -> bool:
    if other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return one.tobytes() == other.tobytes()
