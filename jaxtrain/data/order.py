"""Which example stands at which position: a function of seed, epoch and position only, in O(1)."""

import dataclasses
import functools

import numpy as np
from grain.experimental import index_shuffle

# Rounds of the cipher behind `index_shuffle`: Grain's own default for a global shuffle.
_ROUNDS = 4


@functools.lru_cache(maxsize=64)
def epoch_seed(seed: int, epoch: int) -> int:
    """The 32-bit seed of one epoch's permutation. Neighbouring seeds and epochs give unrelated ones."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Order:
    """The endless sequence of examples of a source: epoch after epoch, each a permutation of all of them.

    The permutation is Grain's `index_shuffle`, a block cipher that walks cycles until it lands in range, so any
    position costs the same. Indices have 64 bits: sources of more than 2**32 examples are shuffled like any other. The
    seed of an epoch has 32 bits, so two of about 2**16 epochs may share their order.
    """

    num_examples: int
    seed: int
    shuffle: bool

    def __call__(self, position: int) -> tuple[int, int]:
        """Return (epoch, index in the source) of a position, counted from 0 at the start of epoch 0."""
        epoch, offset = divmod(position, self.num_examples)
        if not self.shuffle:
            return epoch, offset
        seed = epoch_seed(self.seed, epoch)
        return epoch, index_shuffle(offset, max_index=self.num_examples - 1, seed=seed, rounds=_ROUNDS)
