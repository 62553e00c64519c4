"""Which checkpoint to trust: the newest whose files are, byte for byte, what was written. Changes nothing on disk."""

import dataclasses
import pathlib

from jaxtrain.checkpoint import manifest as manifests
from jaxtrain.checkpoint.manifest import DamagedError, Manifest

# Any of these says that a checkpoint was written here, whatever is left of it.
_MARKS = (manifests.FILE_NAME, "default", "_CHECKPOINT_METADATA")


@dataclasses.dataclass(frozen=True)
class Found:
    """A checkpoint that verified."""

    step: int
    manifest: Manifest


@dataclasses.dataclass(frozen=True)
class Search:
    """The newest checkpoint that verifies, and why newer directories were passed over: step to reason."""

    found: Found | None
    damaged: dict[int, str]
    foreign: dict[int, str]


def numbered(directory: pathlib.Path) -> dict[int, pathlib.Path]:
    """List the numbered directories, newest first; only the spelling that a save uses counts (`7`, not `007`)."""
    paths = {int(path.name): path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir()}
    return {step: paths[step] for step in sorted(paths, reverse=True) if paths[step].name == str(step)}


def is_foreign(path: pathlib.Path) -> bool:
    """Whether nothing in a numbered directory says that a checkpoint was ever written there."""
    return not any((path / mark).exists() for mark in _MARKS)


def verify(path: pathlib.Path) -> Manifest:
    """Read every byte of a checkpoint and compare it with its manifest. Raises DamagedError with the reason."""
    manifest = manifests.read(path)
    if str(manifest.step) != path.name:
        raise DamagedError(f"it is the checkpoint of step {manifest.step} under another name")
    for name, expected in manifest.files.items():  # sizes first: a truncated checkpoint costs no reading
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            raise DamagedError(
                f"{name} is missing" if isinstance(error, FileNotFoundError) else f"{name}: {error}"
            ) from error
        if size != expected.size:
            raise DamagedError(f"{name} has {size} bytes instead of {expected.size}")
    try:
        found = manifests.hash_files(path, list(manifest.files))
    except OSError as error:
        raise DamagedError(f"a file cannot be read: {error}") from error
    changed = [name for name, expected in manifest.files.items() if found[name] != expected]
    if changed:
        raise DamagedError(f"the contents of {', '.join(changed)} changed after they were written")
    return manifest


def search(directory: pathlib.Path) -> Search:
    """Look for the newest checkpoint that verifies, reading the bytes of no older one."""
    damaged: dict[int, str] = {}
    foreign: dict[int, str] = {}
    for step, path in numbered(directory).items():
        if is_foreign(path):
            foreign[step] = "it is empty" if not any(path.iterdir()) else "nothing in it is of a checkpoint"
            continue
        try:
            return Search(Found(step, verify(path)), damaged, foreign)
        except DamagedError as reason:
            damaged[step] = str(reason)
    return Search(None, damaged, foreign)
