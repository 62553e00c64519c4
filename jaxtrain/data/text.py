"""Text or code files as one sequence of bytes or tokens."""

import fnmatch
import hashlib
import os
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxtrain.data.codec import Subwords, make_codec
from jaxtrain.data.fingerprint import combine, file_digest
from jaxtrain.data.splits import DEFAULT_SPLITS, check_splits, in_split
from jaxtrain.data.stream import TokenStream
from jaxtrain.errors import DataError

STDLIB = "stdlib:"  # as `root`: the directory of the running Python's standard library
_ENCODE_FILES = 64  # files handed to the tokenizer's threads at once


class TextFiles(TokenStream):
    """Every file below `root` that matches, concatenated in the order of their names; see `TokenStream` for examples.

    root: a directory, or "stdlib:" for the standard library's own source.
    patterns, exclude: compared with a file's path relative to root (`*` also crosses directories, a leading `**/` may
        be nothing). A directory that matches `exclude` is left out whole.
    split, splits: which files; a file belongs to one split by the hash of its relative path: new files move none.
    tokenizer: "bytes" (vocabulary 256), or the path of a `tokenizers` JSON file (needs the extra `text`).
    separator: the token before each file. With "bytes" it is the byte 0, which no text holds; else the named
        token, by default the first of <|endoftext|>, <|end_of_text|>, </s>, <eos>, [SEP] in the vocabulary.

    The tokens are kept in memory (1 byte each, 2 or 4 with a tokenizer): prepare larger sets as `TokenFiles`.
    """

    def __init__(
        self,
        root: str,
        split: str,
        seq: int,
        patterns: Sequence[str] = ("**/*.py",),
        exclude: Sequence[str] = (),
        splits: Mapping[str, float] | None = None,
        tokenizer: str = "bytes",
        separator: str = "",
    ):
        if seq < 1:
            raise DataError(f"seq={seq} must be at least 1 token")
        bounds = check_splits(DEFAULT_SPLITS if splits is None else splits, split)[split]
        directory = Path(sysconfig.get_path("stdlib") if root == STDLIB else root).expanduser()
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        found = _find(directory, patterns, exclude)
        if not found:
            raise DataError(f"no file below {directory} matches patterns={patterns} (exclude={exclude})")
        self.files = [name for name in found if in_split(name, bounds)]
        self.seq = seq
        contents = [_read(directory / name) for name in self.files]
        if not any(contents):
            raise DataError(
                f"split {split!r} of {directory} has no text: {len(self.files)} of {len(found)} files fall in it"
            )
        self._content = [hashlib.sha256(content).hexdigest() for content in contents]
        paths = [directory / name for name in self.files]
        self.codec = make_codec(tokenizer, separator)
        self.vocab_size = self.codec.vocab_size
        if isinstance(self.codec, Subwords):
            self._encoding = f"{file_digest(tokenizer)} {self.codec.separator}"
            self._tokens = _join_tokens(paths, contents, self.codec)
        else:
            self._encoding = "bytes"
            self._tokens = _join_bytes(paths, contents)
        self.num_tokens = len(self._tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]

    def fingerprint(self) -> str:
        """Return the digest of the split's file names and contents and of the tokenizer."""
        return combine(
            [self._encoding, *(part for pair in zip(self.files, self._content, strict=True) for part in pair)]
        )


def _find(directory: Path, patterns: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Return the relative paths of the matching files, sorted, with `/` on every system."""
    if not directory.is_dir():
        raise DataError(f"root={str(directory)!r} {'is not a directory' if directory.exists() else 'does not exist'}")

    def unreadable(error: OSError) -> None:
        raise DataError(f"cannot list {error.filename}: {error.strerror}") from error

    names = []
    for parent, directories, files in os.walk(directory, onerror=unreadable):
        prefix = Path(parent).relative_to(directory).as_posix() + "/"
        prefix = "" if prefix == "./" else prefix
        directories[:] = [name for name in directories if not _matches(prefix + name, exclude)]
        names += [
            prefix + name
            for name in files
            if _matches(prefix + name, patterns) and not _matches(prefix + name, exclude)
        ]
    return sorted(names)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern) or (pattern.startswith("**/") and fnmatch.fnmatchcase(name, pattern[3:]))
        for pattern in patterns
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _join_bytes(paths: Sequence[Path], contents: Sequence[bytes]) -> np.ndarray:
    for path, content in zip(paths, contents, strict=True):
        if (offset := content.find(b"\0")) >= 0:
            raise DataError(f"{path} is not text: byte 0 at offset {offset}. Leave it out with exclude")
    return np.frombuffer(b"".join(b"\0" + content for content in contents if content), np.uint8)


def _join_tokens(paths: Sequence[Path], contents: Sequence[bytes], codec: Subwords) -> np.ndarray:
    dtype = np.uint16 if codec.vocab_size <= 2**16 else np.int32
    texts = []
    for path, content in zip(paths, contents, strict=True):
        try:
            texts.append(content.decode())
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}. "
                "Leave it out with exclude"
            ) from error
    texts = [text for text in texts if text]
    pieces = []
    for start in range(0, len(texts), _ENCODE_FILES):
        for ids in codec.encode_many(texts[start : start + _ENCODE_FILES]):
            pieces.append(np.asarray([codec.separator, *ids], dtype))
    return np.concatenate(pieces)
