"""Which example stands at which position: a function of seed, epoch and position only, in O(1)."""

import dataclasses
import functools

import numpy as np
from grain.experimental import index_shuffle

from jaxtrain.data.permutation import permutation

# Grain's shuffle takes 10 us an index, but walks cycles in a domain of at least 2**16: milliseconds for ten examples.
# Up to here an epoch's permutation is written out instead, in at most 0.1 s and 2 MiB.
_WRITTEN_OUT = 2**18
_ROUNDS = 4  # of the cipher behind `index_shuffle`: Grain's own default for a global shuffle

_written_out = functools.lru_cache(maxsize=8)(permutation)


@functools.lru_cache(maxsize=64)
def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Order:
    """The endless sequence of examples of a source: epoch after epoch, each a permutation of all of them.

    Up to 2**18 examples the permutation is an array; above, Grain's `index_shuffle`, a block cipher that walks cycles
    until it lands in range, so any position costs the same. Its indices have 64 bits: sources of more than 2**32
    examples are shuffled like any other. The seed of an epoch has 32 bits there, so that in a run of many thousand
    epochs two may share their order.
    """

    num_examples: int
    seed: int
    shuffle: bool

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (epochs, indices in the source), int64, of positions counted from 0 at the start of epoch 0."""
        epochs, offsets = np.divmod(np.asarray(positions, np.int64), self.num_examples)
        if not self.shuffle:
            return epochs, offsets
        if len(epochs) and (epochs == epochs[0]).all():  # nearly always, and several times as fast as what follows
            return epochs, np.asarray(self._shuffled(int(epochs[0]), offsets), np.int64)
        indices = np.empty_like(offsets)
        for epoch in np.unique(epochs):
            rows = epochs == epoch
            indices[rows] = self._shuffled(int(epoch), offsets[rows])
        return epochs, indices

    def _shuffled(self, epoch: int, offsets: np.ndarray) -> np.ndarray | list[int]:
        """Return the indices at these offsets of an epoch."""
        if self.num_examples <= _WRITTEN_OUT:
            return _written_out(self.num_examples, self.seed, epoch)[offsets]
        # Grain 0.2.18 gives two indices the same place where max_index is a power of 4. So none is asked for: walking
        # the cycles of a larger permutation until they land in range gives one of this range.
        max_index = self.num_examples - 1
        max_index += max_index & (max_index - 1) == 0
        seed = _epoch_seed(self.seed, epoch)
        indices = []
        for index in offsets.tolist():
            index = index_shuffle(index, max_index=max_index, seed=seed, rounds=_ROUNDS)
            while index >= self.num_examples:
                index = index_shuffle(index, max_index=max_index, seed=seed, rounds=_ROUNDS)
            indices.append(index)
        return indices
