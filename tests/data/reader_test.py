import pickle

import numpy as np
import pytest

from jaxtrain.data.order import Order
from jaxtrain.data.reader import BadExample, Reader, read_example, read_template
from jaxtrain.errors import ExampleError


def numbers(count):
    return [{"x": np.full(2, i, np.float32), "label": i} for i in range(count)]


class Add:
    def __init__(self, amount):
        self.amount = amount

    def map(self, example):
        return {**example, "x": example["x"] + np.float32(self.amount)}


class Noise:
    def random_map(self, example, rng):
        return {**example, "x": rng.random(2, np.float32)}


def reader(source, transforms=(), end=None):
    return Reader(source, transforms, Order(len(source), 0, False), end, read_template(source, transforms, 0))


def test_transforms_apply_in_order_and_random_ones_follow_the_seed_alone():
    source = numbers(3)
    assert read_example(source, [Add(1), Add(2)], 1, (0, 0))["x"].tolist() == [4.0, 4.0]
    first = read_example(source, [Noise(), Add(1)], 1, (7, 9))["x"]
    assert 1.0 <= first[0] < 2.0
    np.testing.assert_array_equal(read_example(source, [Noise(), Add(1)], 2, (7, 9))["x"], first)
    assert (read_example(source, [Noise(), Add(1)], 1, (7, 10))["x"] != first).any()
    wanted = np.random.default_rng((7, 9)).random(2, np.float32)
    np.testing.assert_array_equal(read_example(source, [Noise()], 1, (7, 9))["x"], wanted)


def test_rows_from_the_end_on_are_padding():
    arrays, bad = reader(numbers(3), end=3)(np.arange(1, 5))
    assert arrays["label"].tolist() == [1, 2, 0, 0]
    assert arrays["mask"].tolist() == [True, True, False, False]
    assert bad == []


def test_a_mask_of_the_examples_own_is_kept_and_zero_on_padding():
    source = [{"mask": np.array([True, False])}, {"mask": np.array([True, True])}]
    arrays, _ = reader(source, end=2)(np.arange(3))
    assert arrays["mask"].tolist() == [[True, False], [True, True], [False, False]]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"x": np.zeros(3, np.float32), "label": 0}, r"it has label \[\] int64, x \[3\] float32.* x \[2\] float32"),
        ({"x": np.zeros(2, np.float64), "label": 0}, "float64"),
        ({"x": np.zeros(2, np.float32)}, "it has x"),
        ({"x": np.zeros(2, np.float32), "label": "cat"}, "'label' is <U3, not numbers"),
        (3, "must be a dict of arrays, not int"),
    ],
)
def test_an_example_unlike_the_first_is_bad_and_leaves_zeros(broken, message):
    arrays, bad = reader([*numbers(2), broken])(np.arange(3))
    (found,) = bad
    assert (found.position, found.index) == (2, 2)
    with pytest.raises((TypeError, ValueError), match=message):
        raise found.error
    assert arrays["mask"].tolist() == [True, True, False]
    assert not arrays["x"][2].any()


def test_the_template_passes_over_bad_examples_but_not_over_all():
    source = [{"x": "text"}, {"x": np.ones(2)}]
    template = read_template(source, (), 0)
    assert template["x"].tolist() == [0.0, 0.0]
    with pytest.raises(ExampleError, match="None of the first 1 examples works: example 0") as info:
        read_template(source[:1], (), 0)
    assert isinstance(info.value.__cause__, TypeError)


def test_a_source_that_states_its_zeros_is_not_read():
    class Stated:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise AssertionError("read")

        def zeros(self):
            return {"x": np.zeros(2)}

    assert read_template(Stated(), (), 0)["x"].shape == (2,)


class Together:
    """Reads many at once, unless one of them is `bad`; `wrong` changes what it returns."""

    def __init__(self, count, bad=-1, wrong=lambda values: values):
        self.values, self.bad, self.wrong, self.calls = np.arange(count, dtype=np.float32), bad, wrong, 0

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if index == self.bad:
            raise OSError("cannot read")
        return {"x": self.values[index]}

    def read_many(self, indices):
        self.calls += 1
        if self.bad in indices:
            raise OSError("cannot read one of them")
        return self.wrong({"x": self.values[indices]})


def test_a_source_that_reads_many_at_once_is_asked_once_and_gives_the_same():
    source = Together(5)
    arrays, bad = reader(source, end=5)(np.array([3, 1, 6, 4]))
    assert source.calls == 1
    assert bad == []
    assert arrays["x"].tolist() == [3.0, 1.0, 0.0, 4.0]
    assert arrays["mask"].tolist() == [True, True, False, True]
    assert not reader(source, end=5)(np.array([7, 8]))[0]["mask"].any()
    reader(source, [Negative()])(np.arange(3))
    assert source.calls == 2, "what must be transformed is read one by one"


class Doubled(Together):
    def __getitem__(self, index):
        return {"x": 2 * self.values[index]}


def test_a_subclass_that_reads_one_example_differently_is_not_asked_for_many():
    source = Doubled(3)
    arrays, _ = reader(source)(np.arange(3))
    assert arrays["x"].tolist() == [0.0, 2.0, 4.0]
    assert source.calls == 0


class Negative:
    def map(self, example):
        return {"x": -example["x"]}


def test_which_of_many_is_bad_is_found_out_one_by_one():
    arrays, bad = reader(Together(5, bad=2))(np.arange(5))
    assert [(example.index, str(example.error)) for example in bad] == [(2, "cannot read")]
    assert arrays["mask"].tolist() == [True, True, False, True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda values: {"x": values["x"][:1]},  # NumPy would repeat it for every row
        lambda values: {"x": values["x"].astype(np.float64) + 0.5},
        lambda values: {"y": values["x"]},
    ],
)
def test_many_of_another_shape_than_one_are_not_laid_into_the_batch(wrong):
    arrays, bad = reader(Together(5, wrong=wrong))(np.arange(5))
    assert bad == []
    assert arrays["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


class UnpicklableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def test_a_bad_example_of_a_worker_keeps_its_traceback():
    def fail(error):
        try:
            raise error
        except type(error) as caught:
            return pickle.loads(pickle.dumps(BadExample(4, 0, 2, caught))).error

    kept = fail(KeyError("label"))
    assert isinstance(kept, KeyError)
    assert "raise error" in kept.__notes__[0]
    replaced = fail(UnpicklableError("one", "two"))
    assert isinstance(replaced, RuntimeError)
    assert "UnpicklableError: one two" in str(replaced)
