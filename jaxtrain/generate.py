"""Text from a language model: prompts in, tokens out, by one compiled program for prompts of all lengths."""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.errors import RefusedError
from jaxtrain.models.logical import Layout, in_force
from jaxtrain.typing import Array, Params, PyTree


def generate(
    model: Any,
    params: Params,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_tokens: Sequence[int] = (),
    key: Array | None = None,
    cache_size: int = 0,
) -> list[list[int]]:
    """Continue each prompt. Gives the new tokens of each, without the stop token that ended it.

    model: a linen module as `jaxtrain.models.transformer:Transformer`, or a task that has one. It needs the fields
    `vocab_size` and `max_seq`, `features(tokens, train, positions)` and `head(features)`, and keeps the collection
    "cache". It computes in the dtype of `params`.
    prompts: tokens of each, one or more; all are continued at once, each from its own length.
    temperature: divides the logits; 0 always takes the likeliest token.
    top_k: draw from the so many likeliest tokens only; 0 from all.
    top_p: draw from the fewest likeliest tokens that together have this probability, after temperature and top_k.
    stop_tokens: any of them ends its text.   key: all that is random; by default always the same.
    cache_size: positions kept for each prompt and its continuation; 0 takes `max_seq`. One program is compiled for
    each (model, number of prompts, cache_size), whatever the prompts and the other arguments are.

    Raises RefusedError for arguments that cannot work.
    """
    model = getattr(model, "model", model)
    cache_size = _check(model, prompts, max_new_tokens, temperature, top_k, top_p, stop_tokens, cache_size)
    if not prompts:
        return []
    tokens = np.zeros((len(prompts), cache_size), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    is_stop = np.isin(np.arange(model.vocab_size), np.asarray(stop_tokens, np.int64))
    made, count = _continue(
        model,
        params,
        tokens,
        lengths,
        np.int32(max_new_tokens),
        (np.float32(temperature), np.int32(top_k), np.float32(top_p)),
        is_stop,
        jax.random.key(0) if key is None else key,
        in_force(),
    )
    made, count = np.asarray(made), int(count)
    return [_until_stop(row[n : n + count].tolist(), is_stop) for row, n in zip(made, lengths, strict=True)]


@functools.partial(jax.jit, static_argnames=("model", "layout"))
def _continue(
    model: nn.Module,
    params: Params,
    tokens: Array,
    lengths: Array,
    max_new_tokens: Array,
    choice: tuple[Array, Array, Array],
    is_stop: Array,
    key: Array,
    layout: Layout | None = None,
) -> tuple[Array, Array]:
    """Fill `tokens` [batch, cache_size] behind the prompts of `lengths` [batch]. Also gives how many steps were made.

    choice: temperature, top_k, top_p.   is_stop: [vocab] bool. A row that has stopped is filled on with the others.
    layout: the one in force, an argument so that each has a program of its own.
    """
    rows = jnp.arange(len(lengths))

    def goes_on(carry: tuple[Array, Array, Array, PyTree]) -> Array:
        count, _, stopped, _ = carry
        return (count < max_new_tokens) & ~jnp.all(stopped)

    def step(carry: tuple[Array, Array, Array, PyTree]) -> tuple[Array, Array, Array, PyTree]:
        count, tokens, stopped, cache = carry
        ends = lengths + count
        logits, cache = next_logits(model, params, cache, tokens[rows, ends - 1], ends - 1)
        chosen = jax.random.categorical(jax.random.fold_in(key, count), restrict(logits, *choice)).astype(jnp.int32)
        return count + 1, tokens.at[rows, ends].set(chosen), stopped | is_stop[chosen], cache

    start = jnp.zeros((), jnp.int32), tokens, jnp.zeros(len(lengths), bool), read_prompts(model, params, tokens)
    count, tokens, _, _ = jax.lax.while_loop(goes_on, step, start)
    return tokens, count


def read_prompts(model: nn.Module, params: Params, tokens: Array) -> PyTree:
    """Give the cache after `tokens` [batch, cache_size].

    What it holds of positions behind a prompt is seen by none before them, and written over when they are reached.
    """
    _, changed = model.apply({"params": params}, tokens, method="features", mutable=["cache"])
    return changed["cache"]


def next_logits(
    model: nn.Module, params: Params, cache: PyTree, tokens: Array, positions: Array
) -> tuple[Array, PyTree]:
    """Read one token of each row, [batch], at its position, [batch]. Gives float32 logits [batch, vocab] and the cache.

    A token that was read before may be read again: it leaves the cache as it is.
    """
    variables = {"params": params, "cache": cache}
    features, changed = model.apply(
        variables, tokens[:, None], positions=positions, method="features", mutable=["cache"]
    )
    logits: Any = model.apply({"params": params}, features, method="head")
    return logits[:, 0].astype(jnp.float32), changed["cache"]


def restrict(logits: Array, temperature: Array, top_k: Array, top_p: Array) -> Array:
    """Give the logits [batch, vocab] to draw from: divided by the temperature, -inf for tokens that are left out.

    top_p: nucleus sampling, the smallest set of tokens V with sum p(V) >= top_p (https://arxiv.org/abs/1904.09751,
    section 3.1). Of equal logits the lower token is the likelier one.
    """
    is_greedy = temperature == 0
    top_k = jnp.where(is_greedy, 1, jnp.where(top_k == 0, logits.shape[-1], top_k))
    scaled = (logits - jnp.max(logits, -1, keepdims=True)) / jnp.where(is_greedy, 1, temperature)
    order = jnp.argsort(-scaled, axis=-1, stable=True)
    ranked = jnp.take_along_axis(scaled, order, -1)
    is_kept = jnp.broadcast_to(jnp.arange(logits.shape[-1]) < top_k, logits.shape)
    probability = jax.nn.softmax(jnp.where(is_kept, ranked, -jnp.inf))
    likelier = jnp.cumsum(probability, -1) - probability  # than this token, in all
    is_kept &= (likelier < top_p) | (top_p >= 1)  # a sum of all the others may round to 1
    return jnp.where(jnp.take_along_axis(is_kept, jnp.argsort(order, axis=-1), -1), scaled, -jnp.inf)


def _until_stop(tokens: list[int], is_stop: np.ndarray) -> list[int]:
    return tokens[: next((i for i, token in enumerate(tokens) if is_stop[token]), len(tokens))]


def _check(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    stop_tokens: Sequence[int],
    cache_size: int,
) -> int:
    """Raise RefusedError for what cannot work. Gives the size of the cache."""
    wanted = ("vocab_size", "max_seq", "features", "head")
    missing = [name for name in wanted if not hasattr(model, name)]
    if not isinstance(model, nn.Module) or missing:
        lacks = f"it has no {', '.join(missing)}" if missing else "it is no linen module"
        raise RefusedError(f"{type(model).__name__} cannot generate: {lacks}. See docs/generate.md.")
    size = cache_size or model.max_seq
    longest = max((len(prompt) for prompt in prompts), default=0)
    asked, allowed = f"max_new_tokens={max_new_tokens}", f"cache_size={size}" if cache_size else f"max_seq={size}"
    checks = {
        f"cache_size={cache_size}: from 1 to the model's max_seq={model.max_seq}": 0 < size <= model.max_seq,
        f"{asked}: 1 or more": max_new_tokens >= 1,
        f"{asked} behind a prompt of {longest} tokens: {allowed} holds {size - longest} more": (
            longest + max_new_tokens <= size
        ),
        "a prompt without tokens: begin it with the one that separates texts": all(len(p) for p in prompts),
        f"temperature={temperature}: 0 or more": 0 <= temperature < float("inf"),
        f"top_k={top_k}: 1 or more, or 0 for all tokens": top_k >= 0,
        f"top_p={top_p}: above 0, and at most 1": 0 < top_p <= 1,
        f"a token that is not among the model's {model.vocab_size}": all(
            0 <= token < model.vocab_size for some in (*prompts, stop_tokens) for token in some
        ),
    }
    wrong = [what for what, is_fine in checks.items() if not is_fine]
    if wrong:
        raise RefusedError("Cannot generate: " + "; ".join(wrong) + ".")
    return size
