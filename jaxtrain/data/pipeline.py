"""The one pipeline from a source to batches: Grain reads ahead, in threads or processes; rows become batches here."""

import collections
import dataclasses
import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import grain
import numpy as np

from jaxtrain.data.order import Order
from jaxtrain.data.reader import BadExample, Reader, empty_batch, read_template, reads_many
from jaxtrain.data.workers import prepare_parent, start_worker
from jaxtrain.errors import DataError, ExampleError, StoppedError

_ENDLESS = 2**56  # "batches" of a repeated source: Grain wants a length
_MAX_THREADS = 16
_MAX_BLOCKS = 8  # of a batch: what keeps threads and workers busy
_FEW_ROWS = 16  # fewer are not worth an element of Grain's
# What is read at once where a source reads many rows together.
_MANY_ROWS = 4096
_MANY_BYTES = 2**22
_MAX_TOGETHER = 64  # batches
_CLOSE_SECS = 5.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LoadedBatch:
    """The rows of one batch that this process holds.

    arrays: each [local_batch, ...]; "mask" is always there and False on padding and bad rows.
    num_bad: how many of these rows were bad examples.
    """

    arrays: dict[str, np.ndarray]
    num_bad: int


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Grain's source: element j is the positions of one block of rows.

    An element costs Grain some 0.2 ms with threads, so it is many rows: a batch is cut into blocks, which are read
    side by side, or a block spans `num_together` batches where reading a row costs next to nothing.
    """

    start: int
    batch_size: int
    blocks: tuple[np.ndarray, ...]
    num_together: int
    num_batches: int

    def __len__(self) -> int:
        return -(-self.num_batches // self.num_together) * len(self.blocks)

    def __getitem__(self, number: int) -> np.ndarray:
        stretch, block = divmod(number, len(self.blocks))
        first = stretch * self.num_together
        starts = [self.start + batch * self.batch_size for batch in range(first, first + self.num_together)]
        return np.concatenate([self.blocks[block] + start for start in starts])


class Loader(Iterator[LoadedBatch]):
    """Iterator of batches; the same bytes for any `num_workers` and `prefetch`.

    source: `__len__` and `__getitem__(i) -> dict[str, np.ndarray]`.
    transforms: objects with `map(example)` or `random_map(example, rng)`, applied in order. `rng` depends on the seed
        and the example's position alone.
    rows: the row numbers of each batch that this process holds. Row r of batch i is position
        start + i * batch_size + r. None: all of them.
    start: position of the first example of the first batch; any is reached at once.
    repeat: True: epoch after epoch without end, batches run across epochs. False: each example once, the last
        batch padded.
    num_workers: processes that read; 0 reads in threads of this one.
    prefetch: batches read ahead; 0 reads when asked (only without workers).
    max_bad_examples: how many examples may fail to be read; a failed one is a row of zeros with mask False.
    num_bad: how many failed before, in an earlier part of this run; they count against `max_bad_examples`.
    num_batches: stop after so many batches; None does not.
    name: the part of the config the source comes from, for messages.

    Raises ExampleError, at the batch where it sits, for one bad example too many; DataError for a damaged source;
    StoppedError if a worker process is killed.
    """

    def __init__(
        self,
        source: Any,
        transforms: Sequence[Any] = (),
        *,
        batch_size: int,
        rows: np.ndarray | Sequence[int] | None = None,
        start: int = 0,
        seed: int = 0,
        shuffle: bool = False,
        repeat: bool = True,
        num_workers: int = 0,
        prefetch: int = 2,
        max_bad_examples: int = 0,
        num_bad: int = 0,
        num_batches: int | None = None,
        name: str = "data",
    ):
        _check_parts(source, transforms, name)
        num_examples = len(source)
        self._name, self._max_bad, self.num_bad = name, max_bad_examples, num_bad
        rows = np.arange(batch_size) if rows is None else np.asarray(rows, np.int64)
        left = None if repeat else max(0, -(-(num_examples - start) // batch_size))
        self.num_batches = min((n for n in (left, num_batches) if n is not None), default=None)
        self._start, self._batch_size, self._num_rows = start, batch_size, len(rows)
        self._template = read_template(source, transforms, seed)
        rows_at_once = _FEW_ROWS
        if reads_many(source, transforms):
            row_bytes = max(1, sum(array.nbytes for array in self._template.values()))
            rows_at_once = max(_FEW_ROWS, min(_MANY_ROWS, _MANY_BYTES // row_bytes))
        self._num_blocks, self._num_together = _divide(len(rows), rows_at_once)
        positions = _Blocks(
            start=start,
            batch_size=batch_size,
            blocks=tuple(np.array_split(rows, self._num_blocks)),
            num_together=self._num_together,
            num_batches=_ENDLESS if self.num_batches is None else self.num_batches,
        )
        order = Order(num_examples, seed, shuffle)
        reader = Reader(source, tuple(transforms), order, None if repeat else num_examples, self._template)
        self._batches_read = self._blocks_read = 0
        self._read: collections.deque[tuple[dict[str, np.ndarray], list[BadExample]]] = collections.deque()
        self._closed = False
        self._has_workers = num_workers > 0
        num_ahead = -(-prefetch * self._num_blocks // self._num_together)
        self._iterators = _start_reading(positions, reader, num_workers, num_ahead)

    def zeros(self) -> dict[str, np.ndarray]:
        """Return a batch of zeros: the keys, shapes and dtypes of every batch of this process."""
        return empty_batch(self._template, self._num_rows)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoadedBatch:
        if self._closed or self._batches_read == self.num_batches:
            self.close()
            raise StopIteration
        if not self._read:
            self._read.extend(self._read_batches())
        arrays, bad = self._read.popleft()
        self._judge(bad)
        self._batches_read += 1
        return LoadedBatch(arrays, len(bad))

    def _read_batches(self) -> Iterator[tuple[dict[str, np.ndarray], list[BadExample]]]:
        """Give the next batches that are read together, each with its bad examples."""
        blocks = [self._next_block(self._blocks_read + block) for block in range(self._num_blocks)]
        self._blocks_read += self._num_blocks
        arrays = blocks[0][0]
        if self._num_blocks > 1 or self._has_workers:
            # A copy also of a single block: what a worker sent is memory shared with it, of a class of Grain's.
            arrays = {key: np.concatenate([np.asarray(arrays[key]) for arrays, _ in blocks]) for key in arrays}
        bad: dict[int, list[BadExample]] = collections.defaultdict(list)
        for example in itertools.chain.from_iterable(bad for _, bad in blocks):
            bad[(example.position - self._start) // self._batch_size - self._batches_read].append(example)
        for number in range(self._num_together):
            rows = slice(number * self._num_rows, (number + 1) * self._num_rows)
            yield {key: value[rows] for key, value in arrays.items()}, bad.get(number, [])

    def _next_block(self, number: int) -> tuple[dict[str, np.ndarray], list[BadExample]]:
        try:
            return next(self._iterators[number % len(self._iterators)])
        except Exception as error:
            # What fails in reading arrives as a BadExample, so this is Grain's own; it names both cases only in text.
            if any("cannot be pickled" in note for note in getattr(error, "__notes__", ())):
                raise DataError(
                    f"{self._name}: the source or a transform cannot be sent to worker processes ({error}). "
                    f"Use --config.{self._name}.num_workers=0, or open files and locks when an example is first read"
                ) from error
            if "Worker process was terminated" in str(error):
                raise StoppedError(f"A worker process of {self._name} was killed while reading: {error}") from error
            raise

    def _judge(self, bad: Sequence[BadExample]) -> None:
        for example in bad:
            if isinstance(example.error, DataError):
                raise example.error
            self.num_bad += 1
            if self.num_bad > self._max_bad:
                message = f"{self._name}: {example}"
                if self._max_bad:
                    message += (
                        f". It is bad example {self.num_bad}; --config.{self._name}.max_bad_examples={self._max_bad}"
                    )
                raise ExampleError(message) from example.error
            _log.warning(
                "%s: skipped bad example %d of at most %d: %s", self._name, self.num_bad, self._max_bad, example
            )

    def close(self) -> None:
        """Stop reading ahead and end the worker processes. Returns within seconds, also when the source hangs."""
        if not self._closed:
            self._closed = True
            # Grain waits up to 25 s for a worker that hangs, so the waiting is left to threads.
            threads = [threading.Thread(target=iterator.close, daemon=True) for iterator in self._iterators]
            self._iterators = []  # Grain's finalizers complain when they run as late as the interpreter's end
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + _CLOSE_SECS
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))


def _divide(num_rows: int, rows_at_once: int) -> tuple[int, int]:
    """Give (blocks of a batch, batches of a block), one of which is 1, for a batch of `num_rows`."""
    if num_rows < rows_at_once and rows_at_once > _FEW_ROWS:
        return 1, min(_MAX_TOGETHER, rows_at_once // max(1, num_rows))
    return max(1, min(_MAX_BLOCKS, num_rows // rows_at_once)), 1


def _start_reading(positions: _Blocks, reader: Reader, num_workers: int, num_ahead: int) -> list[Any]:
    """Return Grain's n iterators that read `num_ahead` blocks ahead in all: block j comes from iterator j mod n."""
    blocks = grain.MapDataset.source(positions).map(reader)
    num_workers = min(num_workers, len(positions))
    if num_workers == 0:
        num_threads = min(num_ahead, _MAX_THREADS, 2 * (os.cpu_count() or 1))
        return [iter(blocks.to_iter_dataset(grain.ReadOptions(num_threads, prefetch_buffer_size=num_ahead)))]
    prepare_parent()
    # One worker a dataset rather than Grain's interleaving of several: they start and end at the same time. The queue
    # to each process is the read-ahead; threads inside of it would only double it.
    options = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=max(1, -(-num_ahead // num_workers)))
    iterators = []
    for worker in range(num_workers):
        mine = blocks[worker::num_workers].to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
        iterators.append(iter(mine.mp_prefetch(options, worker_init_fn=start_worker)))
    for iterator in iterators:
        iterator.get_state()  # makes Grain's inner iterator, without which start_prefetch starts nothing
        iterator.start_prefetch()
    return iterators


def _check_parts(source: Any, transforms: Sequence[Any], name: str) -> None:
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise DataError(f"{name}: a source needs __len__ and __getitem__; {type(source).__name__} lacks one of them")
    if len(source) < 1:
        raise DataError(f"{name}: {type(source).__name__} holds no example")
    for transform in transforms:
        if not (hasattr(transform, "map") or hasattr(transform, "random_map")):
            kind = type(transform).__name__
            raise DataError(f"{name}: a transform needs map(example) or random_map(example, rng); {kind} has neither")
