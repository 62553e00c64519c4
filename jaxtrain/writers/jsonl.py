"""`metrics.jsonl`: one JSON object a line, the record that a resumed run continues bit for bit."""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxtrain import files
from jaxtrain.errors import WorkdirError
from jaxtrain.redact import redact

_logger = logging.getLogger(__name__)

RESERVED = ("step", "time", "split")
_SPELLINGS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def read_lines(path: Path, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a `metrics.jsonl`, or those of one split, floats bit for bit as they were written.

    A torn last line is left out.
    """
    content = path.read_bytes()
    if split is not None:  # few of very many lines: most are not worth decoding
        content = b"".join(line for line in content.splitlines(keepends=True) if f'"{split}"'.encode() in line)
    for _, record in _parsed(content):
        if record is not None and split in (None, record["split"]):
            yield record


class MetricsFile:
    """Appends lines, each (split, step) once. Opening one cuts a torn last line off.

    Floats are written as Python's repr, so equal text means equal bits; non-finite ones as "NaN", "Infinity",
    "-Infinity". On a full disk lines wait in memory (`AppendFile`).
    """

    def __init__(self, path: Path, *, writes: bool = True):
        """writes: False only keeps account of the lines, as the processes do that are not the first one of a run.

        Raises WorkdirError if the file cannot be opened.
        """
        self._path = Path(path)
        self._writes = writes
        try:
            self._file: files.AppendFile | files.Nowhere = files.AppendFile(self._path) if writes else files.Nowhere()
        except OSError as error:
            raise WorkdirError(f"{self._path} cannot be opened: {error.strerror}.") from error
        self._keys: set[tuple[str, int]] = set()
        self._unwritten: list[tuple[str, int]] = []
        self.cut_after(None)

    def write(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> bool:
        """Append the line of `split` at `step`; False if it is there already. `time` is seconds since the epoch.

        Raises ValueError for a scalar named step, time or split.
        """
        clash = [name for name in scalars if name in RESERVED]
        if clash:
            raise ValueError(f"A metric cannot be named {clash[0]!r}: metrics.jsonl uses {', '.join(RESERVED)} itself.")
        if self.has(split, step):
            return False
        values = {redact(name): plain(value) for name, value in scalars.items()}
        record = {"step": int(step), "time": float(time), "split": split, **values}
        self._keys.add((split, int(step)))
        self._unwritten.append((split, int(step)))
        self._file.write((json.dumps(record, allow_nan=False) + "\n").encode())
        self._settle()
        return True

    @property
    def unwritten(self) -> tuple[tuple[str, int], ...]:
        """(split, step) of the lines that a full disk keeps in memory: a kill now would lose them."""
        return tuple(self._unwritten)

    def has(self, split: str, step: int) -> bool:
        return (split, step) in self._keys

    def lines(self) -> list[dict[str, Any]]:
        """The lines in the file."""
        return list(read_lines(self._path))

    def flush(self) -> None:
        """Bring every line to the disk, as far as there is room."""
        self._file.flush()
        self._settle()

    def cut_after(self, step: int | None) -> None:
        """Drop the lines of later steps than `step` (None: of none) and whatever a kill left half-written.

        Raises WorkdirError if the shortened file cannot be written; the old one is then intact.
        """
        assert not self._unwritten, "cut before the first write"
        old = self._path.read_bytes() if self._path.exists() else b""
        kept, keys, num_bad = [], set(), 0
        for text, record in _parsed(old):
            if record is None:
                num_bad += 1
            elif step is None or record["step"] <= step:
                kept.append(text + b"\n")
                keys.add((record["split"], record["step"]))
        if num_bad:
            _logger.warning("%s: dropped %d lines that are not metrics", self._path, num_bad)
        new = b"".join(kept)
        if new != old and self._writes:
            try:
                files.replace_bytes(self._path, new)
                self._file.reopen()
            except OSError as error:
                raise WorkdirError(f"{self._path} cannot be cut after step {step}: {error.strerror}.") from error
        self._keys = keys

    def close(self) -> None:
        """Close. Lines that never found room are named in a warning."""
        self._file.close()
        self._settle()
        if self._unwritten:
            lost = ", ".join(f"{split} {step}" for split, step in self._unwritten)
            _logger.warning("%s lacks these lines, the disk stayed full: %s", self._path, lost)

    def _settle(self) -> None:
        if not self._file.num_pending:
            self._unwritten.clear()


def _parsed(content: bytes) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line with its record; None where a line is not one. What a kill left after the last newline is skipped."""
    *lines, rest = content.split(b"\n")
    for text in lines:
        yield text, _decode(text)
    record = _decode(rest)
    if record is not None:  # only its newline is missing
        yield rest, record


def _decode(text: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
        usable = isinstance(record["step"], int) and isinstance(record["split"], str)
    except (ValueError, TypeError, KeyError):
        return None
    if not usable:
        return None
    return {k: _SPELLINGS.get(v, v) if isinstance(v, str) and k != "split" else v for k, v in record.items()}


def plain(value: Any) -> int | float | str:
    """A number as JSON holds it without losing a bit."""
    if isinstance(value, int | np.integer):
        return int(value)
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
