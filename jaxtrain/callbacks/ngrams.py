"""N-gram tables: what counting alone achieves on the same tokens, printed beside a language model's loss."""

import logging
from typing import Any

import numpy as np

from jaxtrain.callbacks.callback import Callback, Run

_logger = logging.getLogger(__name__)


class NgramBaselines(Callback):
    """After the last step, count n-grams of the training tokens and score an eval's tokens with them.

    eval_name: the eval whose tokens are scored.   orders: numbers of tokens of context, each one table.
    """

    def __init__(self, eval_name: str = "validation", orders: tuple[int, ...] = (1, 2, 3)):
        self.eval_name = eval_name
        self.orders = orders

    def on_end(self, run: Run) -> None:
        train, held_out = (_tokens(source) for source in (run.source, run.eval_sources[self.eval_name]))
        losses = ngram_losses(train, held_out, max(self.orders), run.source.vocab_size)
        loss = run.history(self.eval_name)[-1]["loss"]  # the launch before may have made the last evaluation
        tables = ", ".join(f"order {order} {losses[order]:.3f}" for order in self.orders)
        _logger.info(
            "%s loss %.3f nats per token; tables counted on the training split: %s", self.eval_name, loss, tables
        )


def _tokens(source: Any) -> np.ndarray:
    return np.asarray(source.read(0, source.num_tokens), np.int64)


def ngram_losses(train: np.ndarray, held_out: np.ndarray, max_order: int, vocab_size: int) -> list[float]:
    """Mean negative log-likelihood, in nats per token, of `held_out` under tables of order 0 to `max_order`.

    Witten-Bell interpolation (Chen and Goodman 1998, section 2.5): with n(c) the tokens and t(c) the different tokens
    that followed the context c,

        p(w | c) = (n(c, w) + t(c) p(w | shorter c)) / (n(c) + t(c))

    ending in the uniform distribution. train, held_out: [tokens] integers below vocab_size.
    """
    assert vocab_size ** (max_order + 1) < 2**63, "contexts are packed into 63 bits"
    targets = held_out[max_order:]
    probability = np.full(len(targets), 1.0 / vocab_size)
    losses = []
    for order in range(max_order + 1):
        grams, counts = np.unique(_packed(train, order + 1, vocab_size), return_counts=True)
        contexts, first = np.unique(grams // vocab_size, return_index=True)
        followers = np.diff(np.append(first, len(grams)))
        totals = np.add.reduceat(counts, first)
        asked = _packed(held_out, order + 1, vocab_size)[max_order - order :]
        seen = _look_up(grams, counts, asked)
        context_total = _look_up(contexts, totals, asked // vocab_size)
        context_followers = _look_up(contexts, followers, asked // vocab_size)
        known = context_total > 0
        mixed = (seen + context_followers * probability) / np.maximum(context_total + context_followers, 1)
        probability = np.where(known, mixed, probability)
        losses.append(float(-np.mean(np.log(probability))))
    return losses


def _packed(tokens: np.ndarray, length: int, vocab_size: int) -> np.ndarray:
    """Every run of `length` tokens as one number, in order."""
    packed = np.zeros(len(tokens) - length + 1, np.int64)
    for offset in range(length):
        packed = packed * vocab_size + tokens[offset : len(tokens) - length + 1 + offset]
    return packed


def _look_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The value of each asked key; 0 where it is not among the sorted keys."""
    places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[places] == asked, values[places], 0)
