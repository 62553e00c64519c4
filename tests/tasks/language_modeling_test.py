"""Next-token losses by hand, and in chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.models.transformer import Transformer
from jaxtrain.tasks.language_modeling import LanguageModeling

VOCAB = 5
TOKENS = np.array([[0, 1, 2, 3], [4, 3, 2, 1]], np.int32)
TABLE = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)


def bigram_init(key, tokens):
    return {"table": jnp.asarray(TABLE)}, {}


def bigram_apply(params, model_state, tokens, key, train):
    return params["table"][tokens], model_state


BIGRAM = LanguageModeling((bigram_init, bigram_apply))


def by_hand(mask):
    log_probs = TABLE - np.log(np.exp(TABLE).sum(-1, keepdims=True))
    losses = -log_probs[TOKENS[:, :-1], TOKENS[:, 1:]]
    return (losses * mask).sum() / mask.sum()


@pytest.mark.parametrize("mask", [np.ones((2, 3), bool), np.array([[1, 1, 0], [1, 0, 0]], bool)])
def test_each_counted_token_is_predicted_from_the_one_before(mask):
    params, _ = BIGRAM.init(jax.random.key(0), {"tokens": TOKENS})
    output = BIGRAM.loss(params, {}, {"tokens": TOKENS, "mask": mask}, None, True)
    np.testing.assert_allclose(output.loss.compute(), by_hand(mask), rtol=1e-6)
    assert float(output.loss.weight) == mask.sum()


def test_evaluations_tell_the_perplexity_too():
    batch = {"tokens": TOKENS, "mask": np.array([[1, 1, 0], [1, 0, 0]], bool)}
    assert BIGRAM.loss({"table": TABLE}, {}, batch, None, True).metrics == {}
    metrics = BIGRAM.loss({"table": TABLE}, {}, batch, None, False).metrics
    np.testing.assert_allclose(metrics["perplexity"].compute(), np.exp(by_hand(batch["mask"])), rtol=1e-5)


def test_a_mask_of_examples_counts_all_their_tokens():
    output = BIGRAM.loss({"table": TABLE}, {}, {"tokens": TOKENS, "mask": np.array([True, False])}, None, True)
    np.testing.assert_allclose(output.loss.compute(), by_hand(np.array([[1, 1, 1], [0, 0, 0]])), rtol=1e-6)
    assert float(output.loss.weight) == 3.0


def test_predictions_are_for_all_but_the_last_token():
    assert BIGRAM.predict({"table": TABLE}, {}, {"tokens": TOKENS}).shape == (2, 3, VOCAB)
    assert BIGRAM.tokens_per_example({"tokens": TOKENS[0]}) == 3


def test_a_model_without_features_and_head_cannot_be_chunked():
    task = LanguageModeling(BIGRAM.model, loss_chunks=3)
    with pytest.raises(TypeError, match="no method 'features'"):
        task.loss({"table": TABLE}, {}, {"tokens": TOKENS, "mask": np.ones(2, bool)}, None, True)


@functools.cache
def transformer_loss(loss_chunks):
    model = Transformer(vocab_size=VOCAB, num_layers=1, embed=8, heads=2, max_seq=8, dropout=0.1, scan_layers=False)
    task = LanguageModeling(model, loss_chunks)
    batch = {"tokens": np.arange(18).reshape(2, 9) % VOCAB, "mask": np.arange(8) < np.array([[8], [3]])}

    def init_and_loss(key):
        params, model_state = task.init(key, batch)
        return jax.value_and_grad(lambda params: task.loss(params, model_state, batch, key, True).loss.total)(params)

    return jax.jit(init_and_loss)(jax.random.key(0))


def test_chunks_change_neither_loss_nor_gradient():
    (whole, grads), (chunked, chunked_grads) = transformer_loss(0), transformer_loss(4)
    np.testing.assert_allclose(whole, chunked, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(chunked_grads), strict=True):
        assert np.linalg.norm(a - b) <= 2e-6 * np.linalg.norm(a)
