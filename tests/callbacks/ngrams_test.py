import functools
import logging
import math
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from jaxtrain.callbacks import Run
from jaxtrain.callbacks.ngrams import NgramBaselines, ngram_losses
from jaxtrain.writers.jsonl import MetricsFile

VOCAB = 4


def brute_force(train, held_out, max_order):
    """The formula of the docstring, one probability at a time."""
    followers = defaultdict(list)
    for order in range(max_order + 1):
        for end in range(order, len(train)):
            followers[tuple(train[end - order : end])].append(train[end])

    def probability(token, context):
        shorter = probability(token, context[1:]) if context else 1 / VOCAB
        seen = followers.get(context)
        if seen is None:
            return shorter
        kinds = len(set(seen))
        return (seen.count(token) + kinds * shorter) / (len(seen) + kinds)

    losses = []
    for order in range(max_order + 1):
        logs = [
            math.log(probability(held_out[end], tuple(held_out[end - order : end])))
            for end in range(max_order, len(held_out))
        ]
        losses.append(-sum(logs) / len(logs))
    return losses


@pytest.mark.parametrize("seed", range(8))
def test_losses_are_those_of_the_formula(seed):
    rng = np.random.default_rng(seed)
    train = rng.choice(VOCAB, size=60, p=[0.6, 0.25, 0.15, 0.0]).tolist()  # one token is never seen
    held_out = rng.integers(VOCAB, size=40).tolist()
    losses = ngram_losses(np.array(train), np.array(held_out), 3, VOCAB)
    assert losses == pytest.approx(brute_force(train, held_out, 3), rel=1e-12)


def test_every_probability_is_part_of_a_distribution():
    train = np.random.default_rng(0).integers(VOCAB - 1, size=50)
    for context in ([0, 1], [2, 2], [3, 3]):  # the last was never seen
        total = 0.0
        for token in range(VOCAB):
            total += math.exp(-ngram_losses(train, np.array([*context, token]), 2, VOCAB)[2])
        assert total == pytest.approx(1.0, rel=1e-12)


def test_a_longer_context_helps_where_it_decides_and_nothing_helps_noise():
    pattern = np.tile([0, 1, 1, 2], 500)
    losses = ngram_losses(pattern, pattern[:400], 2, VOCAB)
    assert losses[0] == pytest.approx(math.log(2) * 1.5, abs=0.02)  # the entropy of 1/4, 1/2, 1/4
    assert losses[1] == pytest.approx(math.log(2) * 0.5, abs=0.02)  # only after a 1 two tokens may come
    assert losses[2] < 0.02
    noise = np.random.default_rng(0).integers(VOCAB, size=(2, 20_000))
    assert ngram_losses(*noise, 2, VOCAB) == pytest.approx([math.log(VOCAB)] * 3, abs=0.02)


def test_tables_that_cannot_be_packed_are_refused():
    with pytest.raises(AssertionError, match="63 bits"):
        ngram_losses(np.zeros(9, int), np.zeros(9, int), 3, 100_000)


class Tokens:
    vocab_size = VOCAB

    def __init__(self, tokens):
        self.tokens, self.num_tokens = np.asarray(tokens, np.uint8), len(tokens)

    def read(self, start, stop):
        return self.tokens[start:stop]


def test_the_tables_are_told_beside_the_last_loss_of_the_eval(caplog, tmp_path):
    rng = np.random.default_rng(0)
    train, held_out = rng.integers(VOCAB, size=60).tolist(), rng.integers(VOCAB, size=40).tolist()
    sources = {"test": Tokens(held_out), "other": None}
    run = SimpleNamespace(source=Tokens(train), eval_sources=sources, workdir=tmp_path)
    run.history = functools.partial(Run.history, run)
    callback = NgramBaselines(eval_name="test", orders=(0, 2))
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step, split, loss in ((5, "test", 9.0), (10, "test", 1.5), (10, "other", 7.0)):
        file.write(step, split, {"loss": loss}, 0.0)
    file.close()
    with caplog.at_level(logging.INFO, "jaxtrain.callbacks.ngrams"):
        callback.on_end(run)
    expected = brute_force(train, held_out, 2)
    (message,) = caplog.messages
    assert message == (
        "test loss 1.500 nats per token; tables counted on the training split: "
        f"order 0 {expected[0]:.3f}, order 2 {expected[2]:.3f}"
    )
