"""What the data is, as a short text: equal for equal content, wherever it lies and whenever it was copied."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxtrain.errors import DataError

_FULL_BYTES = 64 * 2**20  # a larger file is not hashed whole
_BLOCK_BYTES = 2**20
_NUM_BLOCKS = 32


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hex.

    Of a file above 64 MiB it covers the size and 32 evenly spaced blocks of 1 MiB, the first and the last included: a
    change elsewhere in it stays unseen.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(str(size).encode())
            if size <= _FULL_BYTES:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
            else:
                for number in range(_NUM_BLOCKS):
                    file.seek((size - _BLOCK_BYTES) * number // (_NUM_BLOCKS - 1))
                    digest.update(file.read(_BLOCK_BYTES))
    except OSError as error:
        raise DataError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    return digest.hexdigest()


def combine(parts: Iterable[Any]) -> str:
    """Return the digest of several texts, numbers or digests, in this order."""
    digest = hashlib.sha256()
    for part in parts:
        text = str(part).encode("utf-8", "surrogateescape")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def fingerprint_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the digest of names, shapes, dtypes and values."""
    parts: list[Any] = []
    for name in sorted(arrays):
        array = arrays[name]
        parts += [name, array.shape, array.dtype.str, hashlib.sha256(array.tobytes()).hexdigest()]
    return combine(parts)
