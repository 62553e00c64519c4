"""Shards of token ids, `.npy` or raw `.bin`, read in place as one sequence."""

import glob
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxtrain.data.fingerprint import combine, file_digest
from jaxtrain.data.stream import TokenStream
from jaxtrain.errors import DataError

_SCAN_TOKENS = 2**22  # tokens compared with the vocabulary at start, over all shards
_SCAN_BLOCKS = 16  # spread over each shard
_MAX_OPEN = 256  # with more shards than this a file is opened for each read


class TokenFiles(TokenStream):
    """Shards of token ids, concatenated in the order given; see `TokenStream` for the examples.

    files: paths, or one glob pattern (sorted by name): `.npy` (one dim) or `.bin` (little-endian, no header).
    dtype: integer dtype of the ids, as "uint16". It is never guessed; an `.npy` shard of another one is refused.
    vocab_size: every id must be below it: 4 M ids over all shards are compared at start, the others when read.
    """

    def __init__(self, files: str | Sequence[str], seq: int, dtype: str, vocab_size: int):
        if seq < 1:
            raise DataError(f"seq={seq} must be at least 1 token")
        if vocab_size < 1:
            raise DataError(f"vocab_size={vocab_size} must be at least 1")
        self.seq, self.vocab_size = seq, vocab_size
        self.files = sorted(glob.glob(files, recursive=True)) if isinstance(files, str) else list(files)
        if not self.files:
            raise DataError(f"files={files!r}: no such file")
        wanted = _integer_dtype(dtype)
        self._shards = [_Shard(path, wanted, keep_open=len(self.files) <= _MAX_OPEN) for path in self.files]
        # Shard k holds the tokens [edges[k], edges[k + 1]) of the sequence.
        self._edges = np.cumsum([0, *(shard.num_tokens for shard in self._shards)], dtype=np.int64)
        self.num_tokens = int(self._edges[-1])
        if self.num_tokens < 2:
            raise DataError(f"{self.files[0]}: a single token is nothing to predict from")
        self._scan()

    def read(self, start: int, stop: int) -> np.ndarray:
        pieces = []
        shard = int(np.searchsorted(self._edges, start, side="right")) - 1
        while start < stop:
            low, high = int(self._edges[shard]), int(self._edges[shard + 1])
            piece = self._shards[shard].read(start - low, min(stop, high) - low)
            self._shards[shard].check(piece, start - low, self.vocab_size)
            pieces.append(piece)
            start, shard = high, shard + 1
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)

    def fingerprint(self) -> str:
        """Return the digest of the shards' contents, in order."""
        return combine(part for shard in self._shards for part in (shard.dtype.str, file_digest(shard.path)))

    def _scan(self) -> None:
        per_shard = max(1, _SCAN_TOKENS // len(self._shards))
        for shard in self._shards:
            num_blocks = 1 if per_shard >= shard.num_tokens else min(_SCAN_BLOCKS, per_shard)
            block = min(shard.num_tokens, per_shard // num_blocks)
            for number in range(num_blocks):
                start = (shard.num_tokens - block) * number // max(1, num_blocks - 1)
                shard.check(shard.read(start, start + block), start, self.vocab_size)


class _Shard:
    """One file of tokens. Opened when first read, so that it can be sent to worker processes.

    Read with `pread` rather than mapped: a file cut short during the run is then an error, not a SIGBUS.
    """

    def __init__(self, path: str, dtype: np.dtype, keep_open: bool):
        self.path, self._keep_open = path, keep_open
        self._kept: list[int] = []
        try:
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise DataError(f"{path} is empty")
                self.dtype, self.offset, num_tokens = _header(file, path, dtype)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        content = self.size - self.offset
        if num_tokens is None:  # raw: as many as there are
            num_tokens, rest = divmod(content, self.dtype.itemsize)
            if rest:
                whole = self.offset + num_tokens * self.dtype.itemsize
                raise DataError(
                    f"{path} is truncated or not {self.dtype.name}: at offset {whole} only {rest} of "
                    f"{self.dtype.itemsize} bytes of a token are left"
                )
        if content < num_tokens * self.dtype.itemsize:
            wanted = self.offset + num_tokens * self.dtype.itemsize
            raise DataError(f"{path} is truncated: it ends at offset {self.size}, its header announces {wanted} bytes")
        if num_tokens == 0:
            raise DataError(f"{path} holds no token")
        self.num_tokens = num_tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        offset, count = self.offset + start * self.dtype.itemsize, (stop - start) * self.dtype.itemsize
        try:
            fd = self._descriptor()
            try:
                content = os.pread(fd, count, offset)
                while len(content) < count:  # a call may return less, as beyond 2 GiB
                    more = os.pread(fd, count - len(content), offset + len(content))
                    if not more:
                        break
                    content += more
            finally:
                if not self._keep_open:
                    os.close(fd)
        except OSError as error:
            raise DataError(f"cannot read {self.path} at offset {offset}: {error.strerror}") from error
        if len(content) < count:
            raise DataError(
                f"{self.path} was cut short during the run: it now ends at offset {offset + len(content)}, "
                f"it had {self.size} bytes"
            )
        return np.frombuffer(content, self.dtype)

    def check(self, tokens: np.ndarray, start: int, vocab_size: int) -> None:
        """Raise DataError for an id outside the vocabulary; `tokens` begin at token `start` of the shard."""
        # Only signed ids may be negative, and the maximum is cheap where all is well.
        if int(tokens.max()) < vocab_size and int(tokens.min()) >= 0:
            return
        at = int(np.flatnonzero((tokens >= vocab_size) | (tokens < 0))[0])
        offset = self.offset + (start + at) * self.dtype.itemsize
        raise DataError(
            f"{self.path}: token {tokens[at]} at offset {offset} is not in the vocabulary of {vocab_size}. "
            f"Is dtype={self.dtype.name!r} what it was written with?"
        )

    def _descriptor(self) -> int:
        if self._kept:
            return self._kept[0]
        fd = os.open(self.path, os.O_RDONLY)
        if (size := os.fstat(fd).st_size) != self.size:
            os.close(fd)
            raise DataError(f"{self.path} changed during the run: {size} bytes, it had {self.size}")
        if self._keep_open:
            self._kept.append(fd)  # two threads may both get here: a list loses neither
        return fd

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": []}

    def __del__(self) -> None:
        for fd in getattr(self, "_kept", ()):
            os.close(fd)


def _integer_dtype(name: str) -> np.dtype:
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise DataError(f"dtype={name!r} is no dtype; use one as uint16, uint32 or int32") from error
    if dtype.kind not in "iu":
        raise DataError(f"dtype={name!r} is not an integer dtype; use one as uint16, uint32 or int32")
    return dtype.newbyteorder("<")


def _header(file: Any, path: str, dtype: np.dtype) -> tuple[np.dtype, int, int | None]:
    """Return (dtype, offset of the first token, number of tokens if the file says it)."""
    if not path.endswith(".npy"):
        return dtype, 0, None
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, found = read(file)
    except ValueError as error:
        raise DataError(f"{path} is not an .npy file, or its header is cut off: {error}") from error
    if found.newbyteorder("<") != dtype:
        raise DataError(f"{path} holds {found.name}, but dtype={dtype.name!r}")
    if len(shape) != 1:
        raise DataError(f"{path} holds an array of shape {shape}; token shards have one dim")
    return found, file.tell(), shape[0]
