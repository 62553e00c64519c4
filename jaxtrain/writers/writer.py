"""The Writer protocol."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Writer(Protocol):
    """What an output of scalars, texts and images implements. Nothing in it may block or fail the training."""

    def write_scalars(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> None:
        """Show `scalars` of `split` at `step`. `time` is seconds since the epoch."""

    def write_text(self, step: int, name: str, text: str) -> None:
        """Show `text` under `name`."""

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        """Show `image`: [height, width, channels] uint8, channels 1, 3 or 4."""

    def close(self) -> None:
        """Finish; nothing is written afterwards."""
