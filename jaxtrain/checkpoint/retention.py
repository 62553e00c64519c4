"""What leaves the checkpoint directory: leftovers of killed saves, checkpoints set aside, and old ones."""

import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable

from jaxtrain import compat

DAMAGED = "damaged"  # directory beside the checkpoints
_DELETED_SUFFIX = ".deleted"
_STALE = re.compile(rf"\d+({re.escape(compat.ORBAX_TMP_SUFFIX)}.*|{re.escape(_DELETED_SUFFIX)})")


def remove_stale(directory: pathlib.Path) -> list[str]:
    """Remove what a killed save or a killed deletion left behind, as far as it can be, and return its names."""
    names = sorted(path.name for path in directory.iterdir() if _STALE.fullmatch(path.name))
    for name in names:
        # Of a save that has just failed some writers may still be at it; what they leave goes at the next start.
        shutil.rmtree(directory / name, ignore_errors=True)
    return names


def set_aside(path: pathlib.Path) -> pathlib.Path:
    """Move a directory that cannot be used to `damaged/<step>-<n>`, where a person can look at it."""
    target = path.parent / DAMAGED
    target.mkdir(exist_ok=True)
    number = 1
    while (target / f"{path.name}-{number}").exists():
        number += 1
    return path.rename(target / f"{path.name}-{number}")


def superseded(steps: Iterable[int], verified: int, keep_last: int, is_kept: Callable[[int], bool]) -> list[int]:
    """List the steps that may go once `verified` has verified: all but the last up to it and those kept for good."""
    older = sorted(step for step in steps if step <= verified)[:-keep_last]
    return [step for step in older if not is_kept(step)]


def delete(path: pathlib.Path) -> None:
    """Delete a checkpoint; a kill in the middle leaves a name that no search takes for a checkpoint."""
    doomed = path.with_name(path.name + _DELETED_SUFFIX)
    path.rename(doomed)
    shutil.rmtree(doomed)


def sync_directory(directory: pathlib.Path) -> None:
    """Make renames in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
