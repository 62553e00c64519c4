"""Data of the runs of this directory. Worker processes import it: NumPy alone keeps their start short."""

import dataclasses
import hashlib
import os
import time
from typing import Any

import numpy as np

HOLD = "JAXTRAIN_TEST_HOLD"  # where a run has it in its environment, sources that say `holds` are never read to an end


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Random pictures of two classes that differ in their mean."""

    num_examples: int
    seed: int = 0
    holds: bool = False

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        _wait_if_held(self.holds)
        rng = np.random.default_rng((self.seed, index))
        label = np.asarray(index % 2, np.int32)
        return {"image": rng.normal(label, size=(4, 4, 1)).astype(np.float32), "label": label}

    def zeros(self) -> dict[str, np.ndarray]:
        return {"image": np.zeros((4, 4, 1), np.float32), "label": np.zeros((), np.int32)}

    def fingerprint(self) -> str:
        return _fingerprint(self)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Random tokens, of which each sentence has another number that count."""

    num_examples: int
    seq: int
    seed: int = 0
    holds: bool = False
    vocab_size = 32

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        _wait_if_held(self.holds)
        rng = np.random.default_rng((self.seed, index))
        tokens = rng.integers(self.vocab_size, size=self.seq + 1, dtype=np.int32)
        return {"tokens": tokens, "mask": np.arange(self.seq) < rng.integers(1, self.seq)}

    def zeros(self) -> dict[str, np.ndarray]:
        return {"tokens": np.zeros(self.seq + 1, np.int32), "mask": np.zeros(self.seq, bool)}

    def fingerprint(self) -> str:
        return _fingerprint(self)


class Noise:
    """Adds noise that depends on an example's position in the data, so that each epoch sees other pictures."""

    def random_map(self, example: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {**example, "image": example["image"] + rng.normal(size=(4, 4, 1)).astype(np.float32)}


def _fingerprint(source: Any) -> str:
    return hashlib.sha256(repr(source).encode()).hexdigest()


def _wait_if_held(holds: bool) -> None:
    while holds and HOLD in os.environ:
        time.sleep(0.1)
