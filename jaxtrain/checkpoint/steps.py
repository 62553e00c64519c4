"""Which checkpoint a step word means. Changes nothing on disk, so that it may look at a run under way."""

import logging
import pathlib

from jaxtrain.checkpoint import verify as verification
from jaxtrain.checkpoint.manifest import DamagedError
from jaxtrain.checkpoint.verify import Found
from jaxtrain.errors import CheckpointError

_logger = logging.getLogger(__name__)


def find(directory: pathlib.Path, step: int | str) -> Found:
    """Give the checkpoint of a step, verified: its number, or "latest" for the newest that verifies.

    Raises CheckpointError.
    """
    if step == "latest":
        return _latest(directory)
    if not str(step).isdecimal():
        raise CheckpointError(f"--step={step}: not a step. Use {_known(directory)}, or latest.")
    path = directory / str(int(step))
    if not path.is_dir():
        raise CheckpointError(f"There is no checkpoint {path}. There is {_known(directory)}.")
    try:
        return Found(int(step), verification.verify(path))
    except DamagedError as reason:
        raise CheckpointError(f"The checkpoint {path} is damaged: {reason}.") from reason


def _latest(directory: pathlib.Path) -> Found:
    search = verification.search(directory) if directory.is_dir() else verification.Search(None, {}, {})
    for damaged, reason in search.damaged.items():
        _logger.warning("the checkpoint of step %d is damaged: %s", damaged, reason)
    if search.found is None:
        raise CheckpointError(f"No checkpoint in {directory} verifies.")
    return search.found


def _known(directory: pathlib.Path) -> str:
    steps = sorted(verification.numbered(directory)) if directory.is_dir() else []
    return ", ".join(map(str, steps)) or "none"
