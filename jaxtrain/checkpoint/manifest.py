"""The manifest of a checkpoint: what it holds and a hash of every file, written inside it before it commits."""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxtrain.checkpoint import leaves

FILE_NAME = "manifest.json"
_FORMAT = 1
# Orbax rewrites these two after the manifest exists. Neither is read by a restore (`restore.py`), so damage there is
# without effect.
_REWRITTEN_LATER = ("_CHECKPOINT_METADATA", "commit_success.txt")


class DamagedError(Exception):
    """A checkpoint does not verify. The message is the reason, without the path."""


@dataclasses.dataclass(frozen=True)
class FileHash:
    """`size` in bytes and hexadecimal `sha256` of one file."""

    size: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    `info` is what the caller of `save` gave (position, counters, ...), `time` seconds since the epoch, `files` the
    paths relative to the checkpoint. `keep`: retention never deletes it.
    """

    step: int
    time: float
    keep: bool
    config_hash: str
    versions: Mapping[str, str]
    info: Mapping[str, Any]
    leaves: Mapping[str, leaves.Leaf]
    files: Mapping[str, FileHash]


def write(directory: pathlib.Path, manifest: Manifest) -> None:
    """Hash every file that is final by now and write the manifest beside them, durably."""
    manifest = dataclasses.replace(manifest, files=hash_files(directory, _listed(directory)))
    with open(directory / FILE_NAME, "wb") as file:
        file.write(_encode(manifest))
        file.flush()
        os.fsync(file.fileno())


def read(directory: pathlib.Path) -> Manifest:
    """Read a manifest. Raises DamagedError when it is missing or any byte of it is not as written."""
    try:
        raw = (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{FILE_NAME} is missing") from None
    except OSError as error:
        raise DamagedError(f"{FILE_NAME} cannot be read: {error.strerror}") from error
    try:
        manifest = _decode(json.loads(raw))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{FILE_NAME} is garbled") from error
    if _encode(manifest) != raw:  # covers the checksum, which is part of the encoding
        raise DamagedError(f"{FILE_NAME} does not match its own checksum")
    return manifest


def hash_files(directory: pathlib.Path, names: list[str]) -> dict[str, FileHash]:
    """Hash files in parallel (hashing leaves the interpreter lock alone). Raises OSError for one that is missing."""

    def hash_file(name: str) -> FileHash:
        with open(directory / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return FileHash(size=file.tell(), sha256=digest)

    with concurrent.futures.ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(hash_file, names), strict=True))


def _listed(directory: pathlib.Path) -> list[str]:
    """List the files of a checkpoint that no longer change."""
    paths = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in paths if path not in (*_REWRITTEN_LATER, FILE_NAME))


def _encode(manifest: Manifest) -> bytes:
    content = {"format": _FORMAT, **dataclasses.asdict(manifest)}
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "checksum": checksum}, sort_keys=True, indent=1).encode()


def _decode(content: dict[str, Any]) -> Manifest:
    return Manifest(
        step=content["step"],
        time=content["time"],
        keep=content["keep"],
        config_hash=content["config_hash"],
        versions=content["versions"],
        info=content["info"],
        leaves={name: leaves.Leaf(tuple(leaf["shape"]), leaf["dtype"]) for name, leaf in content["leaves"].items()},
        files={name: FileHash(file["size"], file["sha256"]) for name, file in content["files"].items()},
    )
