"""Scaled dot-product attention: which kernel runs, why, and the call itself."""

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxtrain.models.logical import constrain, is_split

Implementation = Literal["auto", "xla", "cudnn"]
Kernel = Literal["xla", "cudnn"]

# What the backward pass needs of attention, by the names that rematerialisation policies save.
INPUT_NAMES = ("query", "key", "value")
OUTPUT_NAMES = ("attention", "attention_residual")

# float32 sums of bfloat16 products also in the backward pass, which would multiply in float32 otherwise, at a fraction
# of the speed (https://github.com/jax-ml/jax/issues/24047). float16 has such a preset too, but not on every backend.
_PRECISION = {"bfloat16": jax.lax.DotAlgorithmPreset.BF16_BF16_F32}

_log = logging.getLogger(__name__)


class Target(NamedTuple):
    """The device that a program is compiled for. `capability` is CUDA's (major, minor), None elsewhere."""

    platform: str
    capability: tuple[int, int] | None = None


def default_target() -> Target:
    """Describe the first device of the default backend."""
    device = jax.devices()[0]
    try:
        major, minor = str(getattr(device, "compute_capability", "")).split(".")
        return Target("cuda", (int(major), int(minor)))
    except ValueError:  # not NVIDIA's: a CPU has none, AMD's is a name
        return Target(device.platform)


def choose(
    implementation: Implementation, target: Target, dtype: Any, head_dim: int, seq_is_split: bool = False
) -> tuple[Kernel, str]:
    """Choose the attention kernel and say why.

    cuDNN never stores the [batch, heads, seq, seq] scores, and takes the conditions below. Causal or not makes no
    difference to it, nor do fewer key than query heads.

    Raises ValueError when `implementation` is "cudnn" and a condition is not met.
    """
    if implementation not in ("auto", "xla", "cudnn"):
        raise ValueError(f'attention="{implementation}" is not known. Use "auto", "xla" or "cudnn".')
    if implementation == "xla":
        return "xla", "asked for"
    obstacle = _cudnn_obstacle(target, jnp.dtype(dtype), head_dim, seq_is_split)
    if not obstacle:
        return "cudnn", "asked for" if implementation == "cudnn" else "all its conditions are met"
    if implementation == "cudnn":
        raise ValueError(f'attention="cudnn" cannot run: {obstacle}. Use "auto" to take it only where it can.')
    return "xla", f"cuDNN cannot run: {obstacle}"


def _cudnn_obstacle(target: Target, dtype: jnp.dtype, head_dim: int, seq_is_split: bool) -> str:
    """Say what keeps cuDNN from running; "" if nothing does."""
    if target.capability is None:
        return f"it needs an NVIDIA GPU and this is {target.platform}"
    if target.capability < (8, 0):
        return f"it needs compute capability 8.0 and this GPU has {target.capability[0]}.{target.capability[1]}"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"it takes bfloat16 or float16 and the inputs are {dtype.name}"
    if seq_is_split:
        return "it takes whole sequences and these are split over mesh axes, as by mesh.sequence"
    max_head_dim = 256 if target.capability >= (9, 0) else 128
    if head_dim % 8 or head_dim > max_head_dim:
        return f"it takes a head_dim that is a multiple of 8 up to {max_head_dim} and this is {head_dim}"
    return ""


@functools.cache
def announce(kernel: Kernel, why: str) -> None:
    """Log the choice, once per process however often a program is traced."""
    _log.info("attention runs on %s: %s", kernel, why)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    implementation: Implementation = "auto",
    *,
    causal: bool = True,
) -> jax.Array:
    """Mix `value` by softmax(query @ key / sqrt(head_dim)): [batch, seq, heads, head_dim].

    query: [batch, seq, heads, head_dim]. key, value: [batch, seq, kv_heads, head_dim]; kv_heads divides heads and
    query head i reads key head i // (heads / kv_heads). The softmax is float32, the result has the dtype of `value`.
    """
    seq_is_split = is_split("seq", query.shape[1])
    kernel, why = choose(implementation, default_target(), query.dtype, query.shape[-1], seq_is_split)
    announce(kernel, why)
    query, key, value = (
        checkpoint_name(constrain(x, "batch", "seq", dim, None), name)
        for x, dim, name in zip((query, key, value), ("heads", "kv_heads", "kv_heads"), INPUT_NAMES, strict=True)
    )
    if kernel == "cudnn":
        key, value = (_beside(query, x) for x in (key, value))
        cudnn = functools.partial(jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn")
        return name_residuals(cudnn)(query, key, value)

    def mix(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        key, value = (_beside(query, x) for x in (key, value))
        return constrain(_xla_attention(query, key, value, causal), "batch", "seq", "heads", None)

    # What is gathered of a split sequence is not kept for the backward pass, nor are the scores: both grow with seq.
    mixed = (jax.checkpoint(mix) if seq_is_split else mix)(query, key, value)
    return checkpoint_name(mixed, OUTPUT_NAMES[0])


def _beside(query: jax.Array, x: jax.Array) -> jax.Array:
    """Place keys or values where the queries are that read them: all of seq, and the same heads.

    Where query heads are split and the fewer heads of keys and values cannot be, these are repeated for each query.
    """
    heads, kv_heads, dim = query.shape[2], x.shape[2], "kv_heads"
    if is_split("heads", heads) and not is_split(dim, kv_heads):
        x, dim = jnp.repeat(x, heads // kv_heads, axis=2), "heads"
    return constrain(x, "batch", None, dim, None)


def attend_cached(query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array) -> jax.Array:
    """Compute `attend` for one query of each row, which sees the keys up to its own position.

    query: [batch, 1, heads, head_dim]. key, value: [batch, cache, kv_heads, head_dim]. positions: [batch] int.
    """
    return _xla_attention(query, key, value, True, positions)


def _xla_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, causal: bool, positions: jax.Array | None = None
) -> jax.Array:
    """Compute `attend` by plain operations.

    jax.nn.dot_product_attention computes the same. With heads moved before seq, and the division by the sum done on
    the output instead of the scores, forward and backward pass take 40 % less time on a CPU.
    """
    batch, seq, heads, head_dim = query.shape
    group = heads // key.shape[2]
    query = jnp.moveaxis(
        query.reshape(batch, seq, -1, group, head_dim), 1, 3
    )  # [batch, kv_heads, group, seq, head_dim]
    key, value = jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2)  # [batch, kv_heads, seq, head_dim]
    multiply = functools.partial(
        jnp.einsum, precision=_PRECISION.get(query.dtype.name), preferred_element_type=jnp.float32
    )
    scores = multiply("bkgth,bksh->bkgts", query, key) / math.sqrt(head_dim)
    if causal:
        if positions is None:
            visible = jnp.tri(seq, key.shape[2], dtype=bool)
        else:
            visible = jnp.arange(key.shape[2]) <= positions[:, None, None, None, None]
        scores = jnp.where(visible, scores, -jnp.inf)
    # Any constant may be taken off all scores of a row; its largest keeps exp from overflowing.
    exp = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    mixed = multiply("bkgts,bksh->bkgth", exp.astype(value.dtype), value) / jnp.sum(exp, axis=-1, keepdims=True)
    return jnp.moveaxis(mixed, 3, 1).reshape(batch, seq, heads, head_dim).astype(value.dtype)


def name_residuals(kernel: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Give `kernel` with its output and its residuals named for rematerialisation policies.

    A policy that saves a name around a fused kernel saves its output only: the kernel would run again in the backward
    pass for the residual that never left it (the log-sum-exp). Naming must happen inside the forward rule.
    """

    @jax.custom_vjp
    def named(*inputs: jax.Array) -> jax.Array:
        return kernel(*inputs)

    def forward(*inputs: jax.Array) -> tuple[jax.Array, Any]:
        output, pullback = jax.vjp(kernel, *inputs)
        named_output = checkpoint_name(output, OUTPUT_NAMES[0])

        def name(leaf: Any) -> Any:
            if leaf is output:  # the same array under the same name, or it would be saved twice
                return named_output
            return leaf if any(leaf is x for x in inputs) else checkpoint_name(leaf, OUTPUT_NAMES[1])

        return named_output, jax.tree.map(name, pullback)

    def backward(pullback: Callable[[jax.Array], Any], gradient: jax.Array) -> Any:
        return pullback(gradient)

    named.defvjp(forward, backward)
    return named
