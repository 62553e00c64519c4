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
    arrays, bad = reader(numbers(3), end=3)(range(1, 5))
    assert arrays["label"].tolist() == [1, 2, 0, 0]
    assert arrays["mask"].tolist() == [True, True, False, False]
    assert bad == []


def test_a_mask_of_the_examples_own_is_kept_and_zero_on_padding():
    source = [{"mask": np.array([True, False])}, {"mask": np.array([True, True])}]
    arrays, _ = reader(source, end=2)(range(3))
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
    arrays, bad = reader([*numbers(2), broken])(range(3))
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
