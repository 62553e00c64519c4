"""FLOPs of any program, by a walk over its jaxpr, and what devices can do at most.

The convention, which is that of published MFU figures: 2 FLOPs for a multiply-add; matrix products and convolutions
only; masks change nothing, so causal attention is counted in full; the padding of a convolution counts as data and the
holes of a dilated one do not. `cost_analysis()` of a compiled program instead counts the body of a loop once and a
fused kernel not at all.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxtrain import compat

CONVENTION = "2 a multiply-add; matmuls and convolutions only; causal attention in full"


@dataclasses.dataclass(frozen=True)
class Flops:
    """FLOPs of one call, over all devices.

    model: without what is computed again in a backward pass; MFU is of these.   recomputed: that, beside them.
    unknown_loops: loops of unknown length, counted as one turn.   opaque: names of kernels that cannot be looked into.
    """

    model: int = 0
    recomputed: int = 0
    unknown_loops: int = 0
    opaque: frozenset[str] = frozenset()

    @property
    def hardware(self) -> int:
        """What the devices compute."""
        return self.model + self.recomputed

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            self.model + other.model,
            self.recomputed + other.recomputed,
            self.unknown_loops + other.unknown_loops,
            self.opaque | other.opaque,
        )

    def times(self, count: int) -> "Flops":
        return dataclasses.replace(self, model=self.model * count, recomputed=self.recomputed * count)

    def secs_at_peak(self, devices: Sequence[Any], dtype: str) -> float | None:
        """Seconds that these devices would take at their peak, without what is recomputed; None where it is unknown."""
        peak = device_peak(devices[0].device_kind, dtype)
        return None if peak is None else self.model / (peak * len(devices))

    def __str__(self) -> str:
        parts = [f"{self.model:.4g} FLOPs ({CONVENTION})"]
        if self.recomputed:
            parts.append(f"{self.recomputed:.4g} more are computed again in the backward pass")
        if self.unknown_loops:
            parts.append(f"{self.unknown_loops} loops of unknown length were counted as one turn")
        if self.opaque:
            parts.append(f"not counted: {', '.join(sorted(self.opaque))}")
        return "; ".join(parts)


def count(jaxpr: Any) -> Flops:
    """Count the FLOPs of a jaxpr, such as `jax.make_jaxpr(f)(...)` or `jax.jit(f).trace(...).jaxpr`.

    A scan counts as often as it runs, a while loop once, of a `cond` the branch with the most.
    """
    equations = getattr(jaxpr, "jaxpr", jaxpr).eqns
    return sum((_count_equation(equation) for equation in equations), Flops())


def _count_equation(equation: Any) -> Flops:
    name, params = equation.primitive.name, equation.params
    shapes = [getattr(variable.aval, "shape", ()) for variable in (*equation.invars, *equation.outvars)]
    if name in _FORMULAS:
        found = _FORMULAS[name](params, *shapes[: len(equation.invars)], equation.outvars[0].aval.shape)
    elif name in _OPAQUE:
        found = Flops(opaque=frozenset([name]))
    elif name == "cond":
        found = max((count(branch) for branch in params["branches"]), key=lambda branch: branch.hardware)
    else:
        inner = sum((count(jaxpr) for jaxpr in _jaxprs(params)), Flops())
        found = inner.times(_repetitions(name, params))
        if name == "while" and inner.hardware:
            found += Flops(unknown_loops=1)
    if compat.is_recomputed(equation):
        return dataclasses.replace(found, model=0, recomputed=found.hardware)
    return found


def _repetitions(name: str, params: Mapping[str, Any]) -> int:
    """How often the body of an equation runs, on all devices together."""
    if name == "scan":
        return params["length"]
    if name == "shard_map":  # the body has the shapes of one shard
        return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return 1


def _jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns") or hasattr(item, "jaxpr"):
                yield item


def _dot(params: Mapping[str, Any], left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]) -> Flops:
    (contracted, _), _ = params["dimension_numbers"]
    return Flops(2 * math.prod(out) * math.prod(left[dim] for dim in contracted))


def _convolution(
    params: Mapping[str, Any], left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]
) -> Flops:
    """For each output and each of its channels in (of one group): the taps of the kernel that meet no hole."""
    numbers = params["dimension_numbers"]
    taps = 1
    for index, (size, kernel) in enumerate(zip(numbers.out_spec[2:], numbers.rhs_spec[2:], strict=True)):
        taps *= _taps(
            out[size],
            right[kernel],
            params["window_strides"][index],
            params["padding"][index][0],
            params["lhs_dilation"][index],
            params["rhs_dilation"][index],
        )
    batch, features = (out[dim] for dim in numbers.out_spec[:2])
    return Flops(2 * batch * features * right[numbers.rhs_spec[1]] * taps)


def _taps(size: int, kernel: int, stride: int, padding: int, holes: int, spread: int) -> int:
    """Pairs of an output position and a tap, along one dim, that read an element of an input dilated by `holes`.

    The tap t of output o reads position o * stride + t * spread - padding, an element if `holes` divides it.
    """
    outputs = np.bincount(np.arange(size) * stride % holes, minlength=holes)
    taps = np.bincount((padding - np.arange(kernel) * spread) % holes, minlength=holes)
    return int(outputs @ taps)


def _fused_attention(matmuls: int, recomputed: int) -> Any:
    """cuDNN's kernels take query [batch, seq, heads, head_dim] and key [batch, seq, kv_heads, head_dim]."""

    def formula(params: Mapping[str, Any], query: tuple[int, ...], key: tuple[int, ...], *_: Any) -> Flops:
        product = 2 * math.prod(query) * key[1 if params["layout"] == 0 else 2]
        return Flops(matmuls * product, recomputed * product)

    return formula


_FORMULAS: Mapping[str, Any] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "dot_product_attention_fwd_wrapper": _fused_attention(2, 0),
    "dot_product_attention_bwd_wrapper": _fused_attention(4, 1),  # the scores once more
}
_OPAQUE = {"pallas_call", "ffi_call", "custom_partitioning", "ragged_dot_general", "pure_callback", "io_callback"}


def device_peak(device_kind: str, dtype: str) -> float | None:
    """Give the most FLOPs per second of one device, dense, for matrix products of this dtype; None where unknown.

    device_kind: `jax.Device.device_kind`.   dtype: "bfloat16", "float16" or "float32"; the latter is that of TF32, in
    which XLA multiplies float32 by default, where the device has it. A part of a GPU (MIG) is unknown.
    """
    for pattern, peaks in _PEAKS.items():
        if re.fullmatch(pattern, device_kind):
            tera = dict(zip(("bfloat16", "float16", "float32"), peaks, strict=True)).get(dtype)
            return None if tera is None else tera * 1e12
    return None


# 1e12 FLOPs per second in bfloat16, float16 and float32. From NVIDIA's architecture whitepapers (V100, T4 = Turing,
# A100, H100) and data sheets (A10, L4, L40S, H200, DGX B200), whose figures "with sparsity" are halved.
_PEAKS: Mapping[str, tuple[float | None, float | None, float | None]] = {
    r"NVIDIA B200": (2250, 2250, 1125),
    r"NVIDIA H200|NVIDIA H100 80GB HBM3": (989.4, 989.4, 494.7),
    r"NVIDIA H100 PCIe": (756, 756, 378),
    r"(NVIDIA )?A100-(SXM4|PCIE)-(40|80)GB|NVIDIA A100 80GB PCIe": (312, 312, 156),
    r"NVIDIA L40S": (362, 362, 183),
    r"NVIDIA L4": (121, 121, 60),
    r"NVIDIA A10": (125, 125, 62.5),
    r"(Tesla|NVIDIA) V100-SXM2-.*": (None, 125, 15.7),
    r"(Tesla|NVIDIA) V100-PCIE-.*": (None, 112, 14),
    r"(Tesla|NVIDIA) T4": (None, 65, 8.1),
}
