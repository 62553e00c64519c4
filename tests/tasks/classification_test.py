"""Losses and accuracies of classification by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.evaluate import Evaluator
from jaxtrain.metrics import top_k
from jaxtrain.tasks.classification import Classification
from tests.classifier import make_config, on_one_device, rows

LOGITS = np.log(np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1], [0.25, 0.5, 0.25]], np.float32))
LABELS = np.array([0, 1, 1, 2])
PLAIN = (lambda key, inputs: ({}, {}), lambda params, model_state, inputs, key, train: (inputs, model_state))


def loss(logits, labels, mask, **options):
    batch = {"image": logits, "label": labels, "mask": np.asarray(mask, bool)}
    return Classification(PLAIN, **options).loss({}, {}, batch, jax.random.key(0), True)


def test_loss_and_accuracy_are_those_of_the_counted_examples():
    output = loss(LOGITS, LABELS, [1, 1, 1, 0])
    np.testing.assert_allclose(output.loss.compute(), -np.mean(np.log([0.7, 0.3, 0.8])), rtol=1e-6)
    np.testing.assert_allclose(output.metrics["accuracy"].compute(), 2 / 3, rtol=1e-6)
    assert float(output.loss.weight) == 3.0


def test_padding_does_not_change_the_loss_whatever_it_holds():
    logits = np.concatenate([LOGITS, np.full((3, 3), np.nan, np.float32)])
    padded = loss(logits, np.r_[LABELS, 0, 0, 0], [1] * 4 + [0] * 3)
    whole = loss(LOGITS, LABELS, [1] * 4)
    np.testing.assert_array_equal(padded.loss.compute(), whole.loss.compute())
    np.testing.assert_array_equal(padded.metrics["accuracy"].compute(), whole.metrics["accuracy"].compute())


CONFIGURED = {"top2": {"type": "jaxtrain.metrics:top_k", "k": 2}, "f1": {"type": "jaxtrain.metrics:f1"}}


def test_evaluations_of_any_batch_size_give_the_same_metrics():
    source = rows(100)
    config = make_config(task={"type": "jaxtrain.tasks.classification:Classification", "metrics": CONFIGURED})
    config.task.model = {"type": "jaxtrain.models.mlp:MLP", "features": [8], "num_outputs": 3}
    for size in (1, 7, 64, 100):
        config.evals[f"by_{size}"] = {"data": {"type": source}, "batch_size": size}
    experiment = on_one_device(config)
    state, evaluator = experiment.init_state(), Evaluator(experiment.compile_eval_step)
    by_1, *others = (
        evaluator.run(evaluation, state.params, state.model_state, lambda: False)
        for evaluation in experiment.evaluations
    )
    assert by_1.keys() == {"loss", "accuracy", "top2", "f1"}
    assert 0.1 < by_1["f1"] < by_1["top2"] < 1
    for other in others:
        assert other == pytest.approx(by_1, rel=1e-6)


def test_train_lines_have_the_accuracy_alone():
    batch = {"image": LOGITS, "label": LABELS, "mask": np.ones(4, bool)}
    task = Classification(PLAIN, metrics={"top2": top_k(2)})
    assert list(task.loss({}, {}, batch, None, True).metrics) == ["accuracy"]
    assert list(task.loss({}, {}, batch, None, False).metrics) == ["accuracy", "top2"]


def test_a_metric_cannot_take_the_name_of_another():
    with pytest.raises(ValueError, match=r"has its own accuracy. Give its metrics\.accuracy another name"):
        Classification(PLAIN, metrics={"accuracy": top_k(2)})


def test_the_arrays_are_found_by_the_names_given():
    task = Classification(PLAIN, inputs="x", labels="y")
    batch = {"x": LOGITS, "y": LABELS, "mask": np.ones(4, bool)}
    expected = loss(LOGITS, LABELS, [1] * 4).loss.compute()
    np.testing.assert_array_equal(task.loss({}, {}, batch, None, False).loss.compute(), expected)
    np.testing.assert_array_equal(task.predict({}, {}, batch), LOGITS)


def test_the_loss_is_float32_also_of_16_bit_logits():
    output = loss(jnp.asarray(LOGITS, jnp.bfloat16), LABELS, [1] * 4)
    assert {leaf.dtype for leaf in jax.tree.leaves(output)} == {jnp.dtype(jnp.float32)}


def test_labels_are_smoothed_in_training_and_not_in_evaluation():
    batch = {"image": LOGITS, "label": LABELS, "mask": np.ones(4, bool)}
    task = Classification(PLAIN, label_smoothing=0.3)
    spread = 0.7 * np.eye(3)[LABELS] + 0.1
    trained = task.loss({}, {}, batch, None, True)
    np.testing.assert_allclose(trained.loss.compute(), -(spread * LOGITS).sum(-1).mean(), rtol=1e-5)
    evaluated = task.loss({}, {}, batch, None, False).loss.compute()
    np.testing.assert_array_equal(evaluated, loss(LOGITS, LABELS, [1] * 4).loss.compute())
    with pytest.raises(ValueError, match=r"label_smoothing=1.0 must be from 0 to below 1"):
        Classification(PLAIN, label_smoothing=1.0)
