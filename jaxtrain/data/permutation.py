"""Permutations drawn from a few integers, the same on every machine and with every version of NumPy."""

import numpy as np

# Of the hash by which `SeedSequence` makes words of its pool: fixed for good by NEP 19.
_FIRST_CONSTANT = 0x8B51F9DD
_MULTIPLIER = 0x58F38DED


def permutation(num: int, *words: int) -> np.ndarray:
    """Return a permutation [num] int64 of range(num), a function of `words` alone.

    It sorts the words that `SeedSequence` generates: NumPy fixes those for good, but not what its generators draw.
    """
    keys = _generate_state(np.random.SeedSequence(words), num)
    order = np.argsort(keys)
    if (np.diff(keys[order]) == 0).any():  # one in 2**29 draws of 2**18: their order would be the machine's
        order = np.argsort(keys, kind="stable")
    return order


def _generate_state(sequence: np.random.SeedSequence, num: int) -> np.ndarray:
    """Return `sequence.generate_state(num, np.uint64)`, which takes ten times as long: it makes word after word."""
    constants = np.full(2 * num + 1, _MULTIPLIER, np.uint32)
    constants[0] = _FIRST_CONSTANT
    constants = np.multiply.accumulate(constants, dtype=np.uint32)
    pool = np.tile(sequence.pool, num // 2 + 1)[: 2 * num]
    words = (pool ^ constants[:-1]) * constants[1:]
    words ^= words >> np.uint32(16)
    low, high = words[::2].astype(np.uint64), words[1::2].astype(np.uint64)
    return low | high << np.uint64(32)
