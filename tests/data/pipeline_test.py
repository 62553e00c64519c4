import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import grain
import numpy as np
import psutil
import pytest

from jaxtrain.data.arrays import Arrays
from jaxtrain.data.pipeline import Loader
from jaxtrain.errors import DataError, ExampleError, StoppedError

ROOT = Path(__file__).resolve().parents[2]


class Ragged:
    """Examples of their own number, with a mask; those in `bad` cannot be read."""

    def __init__(self, count, bad=()):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.bad:
            raise KeyError(f"no label in {index}")
        return {"number": np.int32(index), "x": np.full(4, index, np.float32), "mask": np.arange(4) <= index % 4}


class Noise:
    def random_map(self, example, rng):
        return {**example, "x": example["x"] + rng.random(4, np.float32)}


@contextlib.contextmanager
def loading(source, transforms=(), **options):
    loader = Loader(source, transforms, **options)
    try:
        yield loader
    finally:
        loader.close()


def read(source, transforms=(), num=None, **options):
    with loading(source, transforms, **options) as loader:
        return list(itertools.islice(loader, num))


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.num_bad == b.num_bad
        assert a.arrays.keys() == b.arrays.keys()
        for key in a.arrays:
            assert a.arrays[key].dtype == b.arrays[key].dtype
            assert a.arrays[key].tobytes() == b.arrays[key].tobytes(), key


def numbers(batches):
    """Return the numbers of the examples that count, in order."""
    rows = [
        batch.arrays["number"][batch.arrays["mask"].reshape(len(batch.arrays["mask"]), -1).any(1)] for batch in batches
    ]
    return np.concatenate(rows).tolist() if rows else []


def test_batches_are_equal_byte_for_byte_with_0_1_and_4_workers():
    options = {"batch_size": 40, "seed": 3, "shuffle": True, "start": 1234, "max_bad_examples": 20, "num": 12}
    source = Ragged(101, bad=(7, 50))
    threads = read(source, [Noise()], num_workers=0, **options)
    assert sum(batch.num_bad for batch in threads) >= 8
    for num_workers in (1, 4):
        assert_equal(read(source, [Noise()], num_workers=num_workers, **options), threads)
    assert_equal(read(source, [Noise()], prefetch=0, **options), threads)
    # Negative control: the comparison sees another seed.
    with pytest.raises(AssertionError):
        assert_equal(read(source, [Noise()], **{**options, "seed": 4}), threads)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 100])
def test_an_evaluation_reads_every_example_exactly_once_at_any_batch_size(batch_size, shuffle):
    batches = read(Ragged(100), batch_size=batch_size, repeat=False, shuffle=shuffle)
    assert len(batches) == -(-100 // batch_size)
    assert all(len(batch.arrays["mask"]) == batch_size for batch in batches)
    found = numbers(batches)
    assert sorted(found) == list(range(100))
    assert (found == list(range(100))) is not shuffle


@pytest.mark.parametrize("num_processes", [2, 3])
def test_processes_read_disjoint_rows_and_equally_many_batches(num_processes):
    for count in (1, 10, 13):
        parts = [
            read(Ragged(count), batch_size=6, rows=np.arange(6)[index::num_processes], repeat=False)
            for index in range(num_processes)
        ]
        assert {len(part) for part in parts} == {-(-count // 6)}
        assert sorted(itertools.chain.from_iterable(map(numbers, parts))) == list(range(count))
    whole = read(Ragged(13), [Noise()], batch_size=6, shuffle=True, num=5)
    part = read(Ragged(13), [Noise()], batch_size=6, shuffle=True, num=5, rows=[1, 4])
    for a, b in zip(whole, part, strict=True):
        assert a.arrays["x"][[1, 4]].tobytes() == b.arrays["x"].tobytes()


def test_training_passes_over_epochs_each_a_permutation():
    found = numbers(read(Ragged(10), batch_size=4, shuffle=True, num=10))
    epochs = [found[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_later_start_gives_the_same_batches_as_reading_up_to_it():
    options = {"batch_size": 6, "seed": 1, "shuffle": True}
    whole = read(Ragged(25), [Noise()], num=9, **options)
    assert_equal(read(Ragged(25), [Noise()], num=4, start=5 * 6, **options), whole[5:])


def test_num_batches_ends_early_and_not_late():
    assert len(read(Ragged(10), batch_size=4, repeat=False, num_batches=2)) == 2
    assert len(read(Ragged(10), batch_size=4, repeat=False, num_batches=9)) == 3
    assert len(read(Ragged(10), batch_size=4, num_batches=9)) == 9
    assert read(Ragged(10), batch_size=4, repeat=False, start=12) == []


def test_examples_without_a_mask_get_one_a_row():
    (batch,) = read(Arrays(arrays={"x": np.ones((3, 2))}), batch_size=5, repeat=False)
    assert batch.arrays["mask"].tolist() == [True, True, True, False, False]
    assert batch.arrays["x"].sum() == 6


def test_zeros_has_the_shapes_of_every_batch():
    with loading(Ragged(50), batch_size=20, rows=range(5)) as loader:
        batch = next(loader).arrays
        zeros = loader.zeros()
    assert {k: (v.shape, v.dtype) for k, v in zeros.items()} == {k: (v.shape, v.dtype) for k, v in batch.items()}


def test_a_bad_example_is_raised_with_its_number_at_its_batch():
    with loading(Ragged(100, bad=(57,)), batch_size=10) as loader:
        assert numbers(itertools.islice(loader, 5)) == list(range(50))
        with pytest.raises(
            ExampleError, match=r"data: example 57 \(position 57, epoch 0\).*KeyError: 'no label"
        ) as info:
            next(loader)
    assert isinstance(info.value.__cause__, KeyError)


def test_bad_examples_are_skipped_counted_and_limited(caplog):
    source = Ragged(100, bad=(3, 12, 14))
    with loading(source, batch_size=10, max_bad_examples=3, repeat=False) as loader:
        batches = list(loader)
        assert loader.num_bad == 3
    assert [batch.num_bad for batch in batches] == [1, 2, *[0] * 8]
    assert numbers(batches) == [i for i in range(100) if i not in source.bad]
    assert not batches[0].arrays["x"][3].any()
    assert "skipped bad example 3 of at most 3: example 14" in caplog.text
    with (
        pytest.raises(ExampleError, match=r"example 14 .*bad example 3; --config\.data\.max_bad_examples=2"),
        loading(source, batch_size=10, max_bad_examples=2) as loader,
    ):
        list(itertools.islice(loader, 2))
    with pytest.raises(ExampleError, match="bad example 4"):  # those of the run so far count
        read(source, batch_size=10, max_bad_examples=3, num_bad=1, num=2)


class Damaged(Ragged):
    def __getitem__(self, index):
        if index == 2:
            raise DataError("shard.bin was cut short")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_damaged_file_is_no_bad_example(num_workers):
    with pytest.raises(DataError, match=r"shard\.bin was cut short"):
        read(Damaged(10), batch_size=4, num_workers=num_workers, max_bad_examples=9, num=1)


@pytest.mark.parametrize(
    ("source", "transforms", "message"),
    [
        ([], (), "list holds no example"),
        (iter([1]), (), "a source needs __len__ and __getitem__"),
        (Ragged(1), (len,), r"builtin_function_or_method has neither"),
    ],
)
def test_parts_that_cannot_work_are_refused(source, transforms, message):
    with pytest.raises(DataError, match=message):
        Loader(source, transforms, batch_size=1, name="evals.validation.data")


def test_what_cannot_be_sent_to_a_worker_is_refused_with_the_way_out():
    source = Ragged(10)
    source.lock = threading.Lock()
    with pytest.raises(DataError, match=r"cannot be sent to worker processes.*--config\.data\.num_workers=0"):
        read(source, batch_size=2, num_workers=1, num=1)


def test_a_killed_worker_ends_the_run_as_resumable_and_the_others_with_it():
    me = psutil.Process()
    before = set(me.children())
    with loading(Ragged(10**6), batch_size=16, num_workers=2) as loader:
        next(loader)
        workers = [child for child in set(me.children()) - before if "spawn_main" in " ".join(child.cmdline())]
        assert len(workers) == 2
        workers[0].kill()
        with pytest.raises(StoppedError, match=r"A worker process of data was killed .* exit code -9"):
            list(itertools.islice(loader, 100))
    assert psutil.wait_procs(workers, timeout=10)[1] == []


def test_reading_goes_through_grain(monkeypatch):
    made = []
    original = grain.MapDataset.source
    monkeypatch.setattr(grain.MapDataset, "source", lambda source: made.append(source) or original(source))
    read(Ragged(10), batch_size=2, num=1)
    assert len(made) == 1


class Hanging(Ragged):
    released = threading.Event()

    def __getitem__(self, index):
        if index:
            self.released.wait()
        return super().__getitem__(index)


def test_close_returns_although_the_source_hangs():
    loader = Loader(Hanging(10), batch_size=1)
    next(loader)
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < 30
    Hanging.released.set()
    with pytest.raises(StopIteration):
        next(loader)


START_FAR_IN = """
import resource, time, tracemalloc
import numpy as np
from jaxtrain.data.pipeline import Loader

class Virtual:
    def __len__(self):
        return 10**9
    def __getitem__(self, index):
        return {"number": np.int64(index)}

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

before, started = resident(), time.perf_counter()
tracemalloc.start()
loader = Loader(Virtual(), batch_size=32, start=3 * 10**9 + 12345, seed=1, shuffle=True)
numbers = next(loader).arrays["number"]
secs, traced = time.perf_counter() - started, tracemalloc.get_traced_memory()[1]
print(secs, traced, resident() - before, len(set(numbers.tolist())))
loader.close()
"""


def test_a_source_of_a_billion_examples_starts_in_epoch_3_at_once_and_in_little_memory():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", START_FAR_IN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    secs, traced, resident, different = map(float, done.stdout.split())
    assert different == 32
    assert traced < 50e6
    assert resident < 50e6
    assert secs < 10  # some 0.05 s on a quiet machine; a walk over 3e9 positions takes an hour
