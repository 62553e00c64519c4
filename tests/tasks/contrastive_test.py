"""A task of someone else's trains by config alone: one file of theirs, import paths, and nothing of ours but names."""

import ast
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxtrain
from jaxtrain import default_config, train
from jaxtrain.writers.jsonl import read_lines
from tests.classifier import opened_loop, without_times
from tests.tasks import contrastive

NUM_STEPS = 60


def get_config():
    config = default_config()
    config.duration = f"{NUM_STEPS} steps"
    config.batch_size = 16
    config.task.type = "tests.tasks.contrastive:Contrastive"
    config.task.image = {"type": "tests.tasks.contrastive:Tower", "width": 16}
    config.task.text = {"type": "tests.tasks.contrastive:Tower", "width": 24}
    config.data = {"type": "tests.tasks.contrastive:Pairs", "num_pairs": 400}
    config.evals.held_out = {"data": {"num_pairs": 40, "seed": 7}, "every": "30 steps"}
    config.optimizer.learning_rate = 1e-2
    config.log = {"every": "1 step", "tensorboard": False}
    config.sharding.min_size = 0
    return config


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """The lines of a run on all 8 devices."""
    assert jax.device_count() == 8
    return train(get_config(), tmp_path_factory.mktemp("eight") / "w").history


def losses(history, split):
    return np.array([line["loss"] for line in history if line["split"] == split])


def test_it_imports_public_names_alone():
    tree = ast.parse(Path(contrastive.__file__).read_text())
    modules = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    ours = [node for node in modules if "jaxtrain" in ast.unparse(node)]
    assert [ast.unparse(node) for node in ours] == ["from jaxtrain import Mean, Output"]
    assert {"Mean", "Output"} <= set(jaxtrain.__all__)
    assert len(Path(contrastive.__file__).read_text().splitlines()) <= 65


def test_the_loss_falls_and_pairs_that_were_not_seen_are_found(history):
    train_losses = losses(history, "train")
    assert len(train_losses) == NUM_STEPS
    assert train_losses[-10:].mean() < 0.5 * train_losses[0]
    held_out = [line for line in history if line["split"] == "held_out"]
    assert held_out[-1]["loss"] < held_out[0]["loss"]
    assert held_out[-1]["accuracy"] > 0.5  # chance is 1 of 12 or 13


def test_one_and_eight_devices_give_the_same_losses(history, tmp_path):
    with opened_loop(get_config(), tmp_path / "w", num_devices=1) as loop:
        assert loop.run() == "finished"
    one = list(read_lines(tmp_path / "w" / "metrics.jsonl"))
    assert [line.keys() for line in map(without_times, one)] == [line.keys() for line in map(without_times, history)]
    for split in ("train", "held_out"):
        np.testing.assert_allclose(losses(one, split), losses(history, split), rtol=0, atol=1e-5)


def test_a_masked_example_is_as_if_it_were_not_there_and_every_other_one_counts():
    task = contrastive.Contrastive(contrastive.Tower(16), contrastive.Tower(24))
    source = contrastive.Pairs(15)
    rows = [source[i] for i in range(15)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    sound = {name: array[batch["mask"]] for name, array in batch.items()}
    params, _ = jax.jit(task.init)(jax.random.key(0), batch)

    @jax.jit
    def total(params, batch):
        return task.loss(params, {}, batch, None, True).loss.total

    differentiated = jax.jit(jax.value_and_grad(total))
    (with_broken, grads), (without, expected) = (differentiated(params, b) for b in (batch, sound))
    assert with_broken == pytest.approx(float(without), rel=1e-6)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6), grads, expected)
    halves = [{name: array[part] for name, array in sound.items()} for part in (slice(0, 6), slice(6, 12))]
    assert abs(sum(total(params, half) for half in halves) - without) > 0.1  # coupled: no sum over examples
