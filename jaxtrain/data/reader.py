"""Reads examples by position and lays them into the rows of a batch."""

import dataclasses
import logging
import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxtrain.data.order import Order
from jaxtrain.errors import DataError, ExampleError

_log = logging.getLogger(__name__)
_TEMPLATE_TRIES = 16  # examples tried until one shows the shapes


@dataclasses.dataclass(frozen=True)
class BadExample:
    """An example that could not be read or transformed, and why."""

    position: int
    epoch: int
    index: int
    error: Exception

    def __reduce__(self) -> tuple[Any, ...]:
        # Only on the way from a worker process, where the traceback would be lost and the type may be unknown.
        return BadExample, (self.position, self.epoch, self.index, _portable(self.error))

    def __str__(self) -> str:
        where = f"example {self.index} (position {self.position}, epoch {self.epoch})"
        return f"{where} could not be read: {type(self.error).__name__}: {self.error}"


def _portable(error: Exception) -> Exception:
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"In the worker process:\n{text}")
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # noqa: BLE001 whatever a class of the user's does when pickled: its text is what counts
        return RuntimeError(text)


@dataclasses.dataclass(frozen=True)
class Reader:
    """Callable: positions -> (arrays of these rows, the bad examples among them).

    Rows of positions from `end` on are padding. Padding and bad rows hold zeros, also in "mask". A source that has
    `read_many(indices: [n] int64) -> new arrays [n, ...]` is asked for all rows at once, if there are no transforms.
    """

    source: Any
    transforms: Sequence[Any]
    order: Order
    end: int | None
    template: Mapping[str, np.ndarray]

    def __call__(self, positions: np.ndarray) -> tuple[dict[str, np.ndarray], list[BadExample]]:
        rows = np.arange(len(positions)) if self.end is None else np.flatnonzero(positions < self.end)
        epochs, indices = self.order(positions[rows])
        if reads_many(self.source, self.transforms):
            try:
                return self._read_many(len(positions), rows, indices), []
            except Exception as error:  # noqa: BLE001 read one by one below, which tells whose it is
                _log.debug("reading %d examples at once failed: %s", len(indices), error)
        arrays = empty_batch(self.template, len(positions))
        bad = []
        for row, epoch, index in zip(rows.tolist(), epochs.tolist(), indices.tolist(), strict=True):
            position = int(positions[row])
            try:
                example = read_example(self.source, self.transforms, index, (self.order.seed, position))
                self._check(example)
                self._lay(arrays, row, example)
            except Exception as error:  # noqa: BLE001 judged by the loader, in the order of the batches
                bad.append(BadExample(position, epoch, index, error))
        return arrays, bad

    def _lay(self, arrays: dict[str, np.ndarray], rows: int | np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        for key, value in values.items():
            arrays[key][rows] = value
        if "mask" not in values:
            arrays["mask"][rows] = True

    def _read_many(self, num_rows: int, rows: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        values = {key: np.asarray(value) for key, value in self.source.read_many(indices).items()}
        if any(value.shape[:1] != indices.shape for value in values.values()):
            raise ValueError(f"read_many of {len(indices)} indices returned {_describe(values)}")
        if len(indices):
            self._check({key: value[0] for key, value in values.items()})
        if len(rows) == num_rows:
            return values if "mask" in values else {**values, "mask": np.ones(num_rows, bool)}
        arrays = empty_batch(self.template, num_rows)
        self._lay(arrays, rows, values)
        return arrays

    def _check(self, example: Mapping[str, np.ndarray]) -> None:
        wanted = self.template
        if example.keys() != wanted.keys() or any(
            value.shape != wanted[key].shape or value.dtype != wanted[key].dtype for key, value in example.items()
        ):
            raise ValueError(f"it has {_describe(example)}, but the first of the source has {_describe(wanted)}")


def reads_many(source: Any, transforms: Sequence[Any]) -> bool:
    """Can examples be read many at a time? Transforms take them one by one, as does a class that only redefines that.

    A subclass with a `__getitem__` of its own inherits a `read_many` that knows nothing of it.
    """
    for cls in type(source).__mro__:
        if "read_many" in vars(cls):
            return not transforms
        if "__getitem__" in vars(cls):
            break
    return False


def empty_batch(template: Mapping[str, np.ndarray], num_rows: int) -> dict[str, np.ndarray]:
    """Return a batch of zeros [num_rows, ...] for every key of an example, and "mask" if the example has none."""
    arrays = {key: np.zeros((num_rows, *zero.shape), zero.dtype) for key, zero in template.items()}
    arrays.setdefault("mask", np.zeros(num_rows, bool))
    return arrays


def read_example(source: Any, transforms: Sequence[Any], index: int, seed: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return example `index` of the source after all transforms; random ones share `default_rng(seed)`."""
    example = source[index]
    rng = None
    for transform in transforms:
        if hasattr(transform, "random_map"):
            rng = np.random.default_rng(seed) if rng is None else rng
            example = transform.random_map(example, rng)
        else:
            example = transform.map(example)
    if not isinstance(example, Mapping):
        raise TypeError(f"an example must be a dict of arrays, not {type(example).__name__}")
    arrays = {key: np.asarray(value) for key, value in example.items()}
    for key, array in arrays.items():
        if array.dtype.kind not in "biufc" and not array.dtype.name.startswith(("bfloat16", "float8")):
            raise TypeError(f"its {key!r} is {array.dtype}, not numbers; drop or convert it in a transform")
    return arrays


def read_template(source: Any, transforms: Sequence[Any], seed: int) -> dict[str, np.ndarray]:
    """Return an example of zeros with the shapes and dtypes of all; a source with `zeros` and no transform is not read.

    Raises ExampleError if none of the first examples can be read, DataError as the source does.
    """
    if not transforms and hasattr(source, "zeros"):
        return {key: np.zeros_like(value) for key, value in source.zeros().items()}
    first: BadExample | None = None
    for index in range(min(_TEMPLATE_TRIES, len(source))):
        try:
            example = read_example(source, transforms, index, (seed, index))
            return {key: np.zeros_like(value) for key, value in example.items()}
        except DataError:
            raise
        except Exception as error:  # noqa: BLE001 counted when its turn comes; here only the shapes matter
            _log.debug("example %d shows no shapes: %s", index, error)
            first = first or BadExample(index, 0, index, error)
    assert first is not None, "the loader refuses empty sources"
    raise ExampleError(
        f"None of the first {min(_TEMPLATE_TRIES, len(source))} examples works: {first}"
    ) from first.error


def _describe(example: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{key} {list(example[key].shape)} {example[key].dtype}" for key in sorted(example)) or "no array"
