"""The values that accumulation must give, worked out by hand, on 1, 2 and 8 devices and with both engines."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.config import Mesh
from jaxtrain.metrics import Mean
from jaxtrain.sharding import BATCH_AXES, make_mesh
from jaxtrain.step import make_eval_step, make_init, make_train_step
from jaxtrain.tasks import Output

ENGINES = ("multisteps", "fused")


def falling_rate(updates):
    return jnp.where(updates == 0, 1.0, 0.1)


SGD = optax.sgd(0.1)
SGD_FALLING = optax.sgd(falling_rate)
SGD_CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))
ADAMW = optax.adamw(0.1)
ADAMW_CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))


@dataclasses.dataclass(frozen=True)
class TokenLoss:
    """A task whose token losses are the batch's own numbers times one parameter, so that everything is known."""

    def init(self, key, batch):
        return {"scale": jnp.ones(())}, {}

    def loss(self, params, model_state, batch, key, train):
        return Output(Mean.of(params["scale"] * batch["losses"], batch["mask"]), {}, model_state)


@dataclasses.dataclass(frozen=True)
class Dot:
    """A task whose gradient is the mean of the batch's `grads`."""

    def init(self, key, batch):
        return {"w": jnp.zeros(batch["grads"].shape[1:])}, {}

    def loss(self, params, model_state, batch, key, train):
        return Output(Mean.of(batch["grads"] @ params["w"], batch["mask"]), {}, model_state)


@dataclasses.dataclass(frozen=True)
class Regression:
    """A small network with ragged token masks, and a running mean as model state."""

    def init(self, key, batch):
        first, second = jax.random.split(key)
        params = {"a": jax.random.normal(first, (8, 16)) / 3, "b": jax.random.normal(second, (16, 1)) / 4}
        return params, {"num_seen": jnp.zeros(())}

    def loss(self, params, model_state, batch, key, train):
        predicted = (jnp.tanh(batch["x"] @ params["a"]) @ params["b"])[..., 0]
        losses = (predicted - batch["y"]) ** 2
        state = {"num_seen": model_state["num_seen"] + losses.shape[0]}
        return Output(Mean.of(losses, batch["mask"]), {"error": Mean.of(abs(predicted), batch["mask"])}, state)


def microbatched(batch, k):
    return {name: np.asarray(x).reshape(k, -1, *np.shape(x)[1:]) for name, x in batch.items()}


@functools.cache
def jitted_init(task, optimizer):
    return jax.jit(make_init(task, optimizer))


@functools.cache
def jitted_step(task, optimizer, **options):
    """One program for each task, optimizer, engine and shape, shared by all tests."""
    return jax.jit(make_train_step(task, optimizer, **options))


def start(task, optimizer, batch):
    return jitted_init(task, optimizer)(jax.random.key(0), batch)


def one_step(task, optimizer, batch, state=None, **options):
    state = start(task, optimizer, batch) if state is None else state
    return jitted_step(task, optimizer, **options)(state, batch)


def placed(batch, num_devices):
    mesh = make_mesh(Mesh(), jax.devices()[:num_devices])
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(None, BATCH_AXES)))


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_loss_is_weighted_by_tokens_over_all_microbatches(engine):
    losses = np.array([[1.0, 1, 1, 1], [5.0, 7, 7, 7]])
    mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0]], bool)
    batch = microbatched({"losses": losses, "mask": mask}, 2)
    _, metrics = one_step(TokenLoss(), SGD, batch, engine=engine)
    assert float(metrics["loss"].compute()) == pytest.approx(1.8, rel=1e-6)
    mean_of_means = np.mean([losses[0].mean(), losses[1, 0]])
    assert mean_of_means == 3.0


@pytest.mark.parametrize("engine", ENGINES)
def test_clipping_acts_on_the_gradient_of_the_whole_batch(engine):
    batch = microbatched({"grads": np.array([[2.0, 0.0], [0.0, 2.0]]), "mask": np.ones(2, bool)}, 2)
    state, metrics = one_step(Dot(), SGD_CLIPPED, batch, engine=engine)
    np.testing.assert_allclose(state.params["w"], [-0.70710678, -0.70710678], rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm"].compute(), np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_schedule_advances_once_a_batch_and_not_once_a_microbatch(engine):
    batch = microbatched({"grads": np.ones((4, 1)), "mask": np.ones(4, bool)}, 4)
    state = start(Dot(), SGD_FALLING, batch)
    seen, rates = [], []
    for _ in range(2):
        state, metrics = one_step(Dot(), SGD_FALLING, batch, state, engine=engine, learning_rate=falling_rate)
        seen.append(float(state.params["w"][0]))
        rates.append(float(metrics["learning_rate"].compute()))
    np.testing.assert_allclose(seen, [-1.0, -1.1], rtol=1e-6)
    np.testing.assert_allclose(rates, [1.0, 0.1], rtol=1e-6)
    assert int(state.step) == 2
    assert float(state.interval.metrics["loss"].weight) == 8


@pytest.mark.parametrize("engine", ENGINES)
def test_a_microbatch_without_weight_is_as_if_left_out(engine):
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(8, 4, 8)), "y": rng.normal(size=(8, 4)), "mask": rng.random((8, 4)) < 0.5}
    batch = {name: x.astype(np.float32) if x.dtype != bool else x for name, x in batch.items()}
    whole = microbatched(batch, 4)
    whole["mask"][2] = False
    without = {name: np.delete(x, 2, axis=0) for name, x in whole.items()}
    state = start(Regression(), ADAMW, whole)
    with_it, metrics_with = one_step(Regression(), ADAMW, whole, state, engine=engine)
    left_out, metrics_without = one_step(Regression(), ADAMW, without, state, engine=engine)
    for a, b in zip(jax.tree.leaves(with_it.params), jax.tree.leaves(left_out.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    assert float(with_it.model_state["num_seen"]) == float(left_out.model_state["num_seen"]) == 6
    np.testing.assert_allclose(metrics_with["loss"].compute(), metrics_without["loss"].compute(), rtol=1e-6)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_without_weight_changes_nothing_and_is_counted(engine, k):
    batch = microbatched({"x": np.ones((4, 2, 8)), "y": np.full((4, 2), np.nan), "mask": np.zeros((4, 2), bool)}, k)
    before = start(Regression(), ADAMW, batch)
    after, metrics = one_step(Regression(), ADAMW, batch, before, engine=engine)
    assert float(metrics["loss"].compute()) == 0.0
    for part in ("params", "opt_state", "model_state"):
        assert bits(getattr(after, part)) == bits(getattr(before, part))
    assert (int(after.step), int(after.counters.empty), int(after.counters.skipped)) == (1, 1, 0)
    assert int(after.interval.num_steps) == 0
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(after.params))


def ragged_batch():
    rng = np.random.default_rng(1)
    mask = np.arange(4) < rng.integers(0, 5, 32)[:, None]
    return {
        "x": rng.normal(size=(32, 4, 8)).astype(np.float32),
        "y": (rng.normal(size=(32, 4)) * (1 + 3 * mask.sum(1, keepdims=True))).astype(np.float32),
        "mask": mask,
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_a_ragged_batch_gives_the_same_update_on_any_mesh_and_any_microbatches(num_devices, k, engine):
    batch = ragged_batch()
    expected, expected_metrics = one_step(Regression(), SGD, microbatched(batch, 1))
    state, metrics = one_step(Regression(), SGD, placed(microbatched(batch, k), num_devices), engine=engine)
    for name in ("loss", "grad_norm", "error"):
        np.testing.assert_allclose(metrics[name].compute(), expected_metrics[name].compute(), rtol=1e-6)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected.params), strict=True):
        assert np.linalg.norm(a - b) / np.linalg.norm(b) <= 1e-6


def test_means_of_means_would_be_wrong_on_that_batch_by_more_than_a_percent():
    batch = microbatched(ragged_batch(), 4)
    state = start(Regression(), SGD, batch)
    _, right = one_step(Regression(), SGD, batch, state, engine="multisteps")
    each = [one_step(Regression(), SGD, {name: x[i : i + 1] for name, x in batch.items()}, state) for i in range(4)]
    losses = [float(metrics["loss"].compute()) for _, metrics in each]
    right_loss = float(right["loss"].compute())
    assert abs(np.mean(losses) - right_loss) > 0.01 * right_loss


@pytest.mark.parametrize("engine", ENGINES)
def test_one_nan_microbatch_drops_the_whole_batch_and_the_next_one_updates(engine):
    good = microbatched({"grads": np.ones((4, 2)), "mask": np.ones(4, bool)}, 4)
    bad = {name: x.copy() for name, x in good.items()}
    bad["grads"][1] = np.nan
    before = start(Dot(), ADAMW_CLIPPED, good)
    skipped, _ = one_step(Dot(), ADAMW_CLIPPED, bad, before, engine=engine, nonfinite_limit=10)
    for part in ("params", "opt_state"):
        assert bits(getattr(skipped, part)) == bits(getattr(before, part))
    assert (int(skipped.counters.skipped), int(skipped.counters.bad_step)) == (1, 1)
    assert not bool(skipped.counters.halted)
    after, metrics = one_step(Dot(), ADAMW_CLIPPED, good, skipped, engine=engine, nonfinite_limit=10)
    assert bits(after.params) != bits(before.params)
    assert int(after.counters.in_a_row) == 0
    assert np.isfinite(metrics["loss"].compute())


@pytest.mark.parametrize("k", [1, 2])
def test_a_halted_state_consumes_batches_and_changes_nothing_else(k):
    good = microbatched({"grads": np.ones((4, 2)), "mask": np.ones(4, bool)}, k)
    bad = {**good, "grads": good["grads"] * np.inf}
    before, _ = one_step(Dot(), ADAMW, good)
    halted, _ = one_step(Dot(), ADAMW, bad, before)
    after, _ = one_step(Dot(), ADAMW, good, halted)
    assert bool(after.counters.halted)
    assert int(after.step) == 3
    assert bits(after.params) == bits(before.params)
    assert bits(after.interval) == bits(before.interval)


def test_evaluation_of_ten_examples_in_batches_of_four_counts_each_once():
    right = np.array([1] * 8 + [0] * 2 + [0, 0], np.float32)
    batches = [{"losses": right[i : i + 4, None], "mask": (np.arange(i, i + 4) < 10)[:, None]} for i in range(0, 12, 4)]
    eval_step = jax.jit(make_eval_step(TokenLoss()))
    total = None
    for batch in batches:
        loss = eval_step({"scale": jnp.ones(())}, {}, batch)["loss"]
        total = loss if total is None else total.merge(loss)
    assert float(total.compute()) == pytest.approx(0.8)


def test_the_default_engine_is_optax_multisteps(monkeypatch):
    made = []
    original = optax.MultiSteps.__init__

    def spy(self, *args, **kwargs):
        made.append(kwargs)
        original(self, *args, **kwargs)

    monkeypatch.setattr(optax.MultiSteps, "__init__", spy)
    batch = microbatched({"grads": np.ones((4, 1)), "mask": np.ones(4, bool)}, 2)
    jax.eval_shape(make_train_step(Dot(), SGD), start(Dot(), SGD, batch), batch)
    assert [options["use_grad_mean"] for options in made] == [False]
