"""Names for the shapes of data that pass between modules."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

Array = jax.Array
PyTree = Any
Params = PyTree  # floating-point leaves that the optimizer updates
ModelState = PyTree  # every other collection of a model: batch statistics, caches, counters
Example = Mapping[str, np.ndarray]  # one item, without a batch dim
Batch = Mapping[str, Array]  # every value [batch, ...]; always holds "mask": [batch] or [batch, ...] bool
