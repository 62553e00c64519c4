from collections import Counter

import numpy as np
import pytest

from jaxtrain.data import order as order_module
from jaxtrain.data.order import Order


def pairs(order, positions):
    """(epoch, index) of each position."""
    epochs, indices = order(np.array(list(positions)))
    return list(zip(epochs.tolist(), indices.tolist(), strict=True))


@pytest.mark.parametrize("num_examples", [1, 2, 3, 10, 1000, order_module._WRITTEN_OUT + 1])
def test_every_epoch_is_a_permutation_of_all_examples(num_examples):
    order = Order(num_examples, seed=3, shuffle=True)
    for epoch in range(2):
        found = pairs(order, range(epoch * num_examples, (epoch + 1) * num_examples))
        assert {e for e, _ in found} == {epoch}
        assert sorted(index for _, index in found) == list(range(num_examples))


@pytest.mark.parametrize("num_examples", [100, order_module._WRITTEN_OUT + 1])
def test_epochs_and_seeds_have_different_orders_and_equal_ones_agree(num_examples):
    def epoch_of(seed, epoch):
        start = epoch * num_examples
        return [index for _, index in pairs(Order(num_examples, seed, True), range(start, start + 100))]

    orders = [epoch_of(seed, epoch) for seed in (0, 1, 2**32 - 1) for epoch in (0, 1, 2)]
    assert len({tuple(order) for order in orders}) == len(orders)
    assert epoch_of(1, 2) == epoch_of(1, 2)


def test_without_shuffle_positions_are_indices():
    assert pairs(Order(3, 0, False), range(5)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_an_example_is_no_likelier_at_one_place_than_at_another():
    counts = Counter(index for seed in range(4000) for _, index in pairs(Order(8, seed, True), [0]))
    assert len(counts) == 8
    # Binomial with mean 500 and standard deviation 21: five of them on either side.
    assert all(395 < count < 605 for count in counts.values())


@pytest.mark.parametrize("num_examples", [2**32 + 7, 2**33, 10**12])
def test_more_examples_than_32_bits_are_all_reached(num_examples):
    order = Order(num_examples, seed=5, shuffle=True)
    # A shuffle that dropped the upper bits would send an offset and the one 2**32 further to the same place.
    offsets = [offset for low in range(7) for offset in (low, low + 2**32)]
    offsets += [int(x) for x in np.random.default_rng(0).integers(0, num_examples, 5000)]
    offsets = sorted(set(offsets))
    found = [index for _, index in pairs(order, offsets)]
    assert len(set(found)) == len(found)
    assert all(0 <= index < num_examples for index in found)
    assert max(found) > 0.99 * num_examples


def test_a_far_position_is_as_cheap_as_a_near_one():
    order = Order(1000, seed=0, shuffle=True)
    ((epoch, index),) = pairs(order, [10**15 + 1])
    assert (epoch, 0 <= index < 1000) == (10**12, True)


@pytest.mark.parametrize("num_examples", [10, order_module._WRITTEN_OUT + 1])
def test_many_positions_are_as_one_by_one_also_across_epochs(num_examples):
    order = Order(num_examples, seed=2, shuffle=True)
    positions = [*range(num_examples - 3, num_examples + 4), 5 * num_examples, 2, 3 * num_examples - 1]
    assert pairs(order, positions) == [pair for position in positions for pair in pairs(order, [position])]
