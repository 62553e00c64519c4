"""Examples cut out of one long sequence of tokens by index arithmetic."""

import abc

import numpy as np


class TokenStream(abc.ABC):
    """A sequence of tokens seen as examples of `seq` predictions each.

    Example i holds the tokens [i * seq, i * seq + seq], both ends included, so its targets `tokens[1:]` start where
    those of example i - 1 ended: every token but the first is a target exactly once. The last example is padded.

    An example is `tokens: [seq + 1] int32` and `mask: [seq] bool`, False where the target is padding (token 0).
    """

    seq: int
    num_tokens: int
    vocab_size: int

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens [start, stop) of the sequence, any integer dtype. 0 <= start <= stop <= num_tokens."""

    def __len__(self) -> int:
        return max(0, -(-(self.num_tokens - 1) // self.seq))

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        return {key: value[0] for key, value in self.read_many(np.array([index])).items()}

    def read_many(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the examples `indices`, [n] int64, stacked."""
        tokens = np.zeros((len(indices), self.seq + 1), np.int32)
        mask = np.ones((len(indices), self.seq), bool)
        for row, index in enumerate(indices.tolist()):
            start = index * self.seq
            found = self.read(start, min(start + self.seq + 1, self.num_tokens))
            tokens[row, : len(found)] = found
            mask[row, len(found) - 1 :] = False
        return {"tokens": tokens, "mask": mask}

    def zeros(self) -> dict[str, np.ndarray]:
        """Return an example of zeros: the shapes and dtypes of every example."""
        return {"tokens": np.zeros(self.seq + 1, np.int32), "mask": np.zeros(self.seq, bool)}
