"""Splits of a set of items: named, exhaustive and disjoint by construction."""

import difflib
import hashlib
import math
from collections.abc import Mapping

import numpy as np

from jaxtrain.data.permutation import permutation
from jaxtrain.errors import DataError

DEFAULT_SPLITS: Mapping[str, float] = {"train": 0.9, "validation": 0.1}
_SPLIT_WORD = 0  # fixed: which row belongs to which split must not follow the run's seed


def check_splits(splits: Mapping[str, float], split: str) -> dict[str, tuple[float, float]]:
    """Return the range [low, high) of [0, 1) of each split, given their fractions.

    Names are taken in alphabetic order, so the order they are written in has no effect.
    Raises DataError for fractions that are not positive or do not add up to 1, and for an unknown `split`.
    """
    if split not in splits:
        close = difflib.get_close_matches(split, list(splits), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(f"split={split!r} is unknown; the splits are {', '.join(sorted(splits))}.{hint}")
    for name, fraction in splits.items():
        if not (isinstance(fraction, int | float) and 0 < fraction <= 1):
            raise DataError(f"splits.{name}={fraction!r} is not a fraction above 0 and up to 1")
    total = math.fsum(splits.values())
    if abs(total - 1) > 1e-6:
        raise DataError(f"the fractions of splits add up to {total:g}, not 1: {dict(splits)}")
    names = sorted(splits)
    edges = [math.fsum(splits[name] for name in names[:count]) for count in range(len(names))] + [1.0]
    return {name: (edges[number], edges[number + 1]) for number, name in enumerate(names)}


def in_split(key: str, bounds: tuple[float, float]) -> bool:
    """Whether the hash of `key`, a point of [0, 1), lies in the split's range."""
    point = int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:6], "big") / 2**48
    return bounds[0] <= point < bounds[1]


def split_rows(num_rows: int, bounds: tuple[float, float]) -> np.ndarray:
    """Return the rows [rows] int64, ascending, of a split: a cut of one fixed permutation of all rows."""
    permuted = permutation(num_rows, _SPLIT_WORD)
    return np.sort(permuted[round(bounds[0] * num_rows) : round(bounds[1] * num_rows)])


def stratified_rows(labels: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return the rows [rows] int64, ascending, of a split that takes the same share of each class.

    labels: [rows] integers. The rows of a class are dealt by a fixed permutation of its own.
    """
    rows = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        members = members[permutation(len(members), _SPLIT_WORD, int(label))]
        rows.append(members[round(bounds[0] * len(members)) : round(bounds[1] * len(members))])
    return np.sort(np.concatenate(rows))
