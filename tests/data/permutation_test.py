import numpy as np
import pytest

from jaxtrain.data.permutation import _generate_state, permutation


@pytest.mark.parametrize("num", [0, 1, 2, 7, 1000])
def test_each_number_occurs_once(num):
    assert sorted(permutation(num, 5, 6)) == list(range(num))


def test_it_follows_every_word_and_nothing_else():
    drawn = {tuple(permutation(50, *words)) for words in [(0,), (1,), (1, 0, 2), (2, 0, 1), (1, 0, 3)]}
    assert len(drawn) == 5
    np.testing.assert_array_equal(permutation(50, 1, 2), permutation(50, 1, 2))


def test_the_order_of_runs_already_made_is_kept():
    # Written down once: another result would change the data order, and the splits, of every resumed run.
    assert permutation(8, 1, 2).tolist() == [5, 3, 2, 6, 1, 4, 7, 0]


@pytest.mark.parametrize("num", [0, 1, 2, 5, 1000])
@pytest.mark.parametrize("words", [(0,), (1, 2), (2**63, 7, 2**32)])
def test_the_words_are_those_of_a_seed_sequence(num, words):
    sequence = np.random.SeedSequence(words)
    np.testing.assert_array_equal(_generate_state(sequence, num), sequence.generate_state(num, np.uint64))
