"""What two runs must have in common, bit for bit."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def lines(workdir: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl. Floats are written as their repr: equal numbers are equal bits."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def without_times(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the times and rates, which no two runs share."""
    return [{k: v for k, v in line.items() if k != "time" and not k.endswith(("_secs", "_per_sec"))} for line in lines]


def bits(leaf: jax.Array) -> tuple[str, tuple[int, ...], bytes]:
    """Give dtype, shape and content of an array or a PRNG key."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return str(array.dtype), array.shape, array.tobytes()
