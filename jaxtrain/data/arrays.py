"""Arrays in memory: row i of each is example i."""

import os
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from jaxtrain.data.fingerprint import fingerprint_arrays
from jaxtrain.data.splits import DEFAULT_SPLITS, check_splits, split_rows
from jaxtrain.errors import DataError


class Arrays:
    """The rows of an `.npz` file or of a mapping of arrays, each `[rows, ...]`, all of one length.

    split, splits: which rows; "" takes all of them. Rows are dealt to the splits by one fixed permutation.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "",
        arrays: Mapping[str, np.ndarray] | None = None,
        split: str = "",
        splits: Mapping[str, float] | None = None,
    ):
        if bool(path) == (arrays is not None):
            raise DataError("give either path, an .npz file, or arrays, a mapping of arrays")
        self.arrays = (
            _load(os.fspath(path)) if arrays is None else {key: np.asarray(value) for key, value in arrays.items()}
        )
        where = os.fspath(path) or "arrays"
        lengths = {key: len(value) if value.ndim else None for key, value in self.arrays.items()}
        if len(set(lengths.values())) > 1 or None in lengths.values():
            raise DataError(f"{where}: every array needs the same first dim, found lengths {lengths}")
        num_rows = next(iter(lengths.values()), 0)
        if not num_rows:
            raise DataError(f"{where} holds no example")
        if split:
            rows = split_rows(num_rows, check_splits(DEFAULT_SPLITS if splits is None else splits, split)[split])
            if not len(rows):
                raise DataError(f"{where}: split {split!r} has none of the {num_rows} examples")
            self.arrays = {key: value[rows] for key, value in self.arrays.items()}
        elif splits is not None:
            raise DataError(f"splits is given but not split; choose one of {', '.join(sorted(splits))}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {key: np.asarray(value[index]) for key, value in self.arrays.items()}

    def read_many(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the examples `indices`, [n] int64, stacked."""
        return {key: value[indices] for key, value in self.arrays.items()}

    def zeros(self) -> dict[str, np.ndarray]:
        """Return an example of zeros: the shapes and dtypes of every example."""
        return {key: np.zeros(value.shape[1:], value.dtype) for key, value in self.arrays.items()}

    def fingerprint(self) -> str:
        """Return the digest of the split's names, shapes, dtypes and values."""
        return fingerprint_arrays(self.arrays)


def _load(path: str) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise DataError(f"{path} is not an .npz file, or its end is cut off ({os.path.getsize(path)} bytes)")
            with np.load(file, allow_pickle=False) as archive:
                return {key: archive[key] for key in archive.files}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged or not plain arrays: {error}") from error
