"""Permutations drawn from a few integers, the same on every machine and with every version of NumPy."""

import numpy as np


def permutation(num: int, *words: int) -> np.ndarray:
    """Return a permutation [num] int64 of range(num), a function of `words` alone.

    It sorts the words that `SeedSequence` generates: NumPy fixes those for good, but not what its generators draw.
    """
    keys = np.random.SeedSequence(words).generate_state(num, np.uint64)
    return np.argsort(keys, kind="stable")
