"""Gradients that meet once a step: the values worked out by hand, what is sent, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from jaxtrain.assembly import assemble
from jaxtrain.config import Mesh, parse
from jaxtrain.errors import ConfigError
from jaxtrain.metrics import Mean
from jaxtrain.models.mlp import MLP
from jaxtrain.plan.collectives import collectives, total_bytes
from jaxtrain.reduction import Once, changed_state
from jaxtrain.sharding import make_mesh, replicated
from jaxtrain.step import make_init, make_train_step
from jaxtrain.tasks import Output
from jaxtrain.tasks.classification import Classification
from jaxtrain.train import train
from tests.accumulation_test import (
    ADAMW_CLIPPED,
    ENGINES,
    SGD,
    SGD_CLIPPED,
    SGD_FALLING,
    Dot,
    TokenLoss,
    bits,
    falling_rate,
    microbatched,
    placed,
    ragged_batch,
)
from tests.classifier import make_config
from tests.tasks import contrastive

on_each_mesh = pytest.mark.parametrize("num_devices", [1, 2, 8])
with_each_engine = pytest.mark.parametrize("engine", ENGINES)


@dataclasses.dataclass(frozen=True)
class Network:
    """A small network with ragged token masks."""

    def init(self, key, batch):
        first, second = jax.random.split(key)
        return {"a": jax.random.normal(first, (8, 16)) / 3, "b": jax.random.normal(second, (16, 1)) / 4}, {}

    def loss(self, params, model_state, batch, key, train):
        predicted = (jnp.tanh(batch["x"] @ params["a"]) @ params["b"])[..., 0]
        error = {"error": Mean.of(abs(predicted), batch["mask"])}
        return Output(Mean.of((predicted - batch["y"]) ** 2, batch["mask"]), error, model_state)


@functools.cache
def jitted_init(task, optimizer):
    return jax.jit(make_init(task, optimizer))


@functools.cache
def once_step(task, optimizer, num_devices, **options):
    mesh = make_mesh(Mesh(), jax.devices()[:num_devices])
    abstract = jax.eval_shape(lambda: make_init(task, optimizer)(jax.random.key(0), inputs_of(task)))
    shardings = jax.tree.map(lambda _: replicated(mesh), abstract.params)
    return jax.jit(make_train_step(task, optimizer, reduction=Once(shardings, mesh=mesh), **options))


def inputs_of(task):
    if isinstance(task, Network):
        return microbatched(ragged_batch(), 1)
    name, width = ("grads", 2) if isinstance(task, Dot) else ("losses", 4)
    mask = np.ones((1, 8), bool) if isinstance(task, Dot) else np.ones((1, 8, width), bool)
    return {name: np.zeros((1, 8, width), np.float32), "mask": mask}


def start(task, optimizer, num_devices=1):
    state = jitted_init(task, optimizer)(jax.random.key(0), inputs_of(task))
    return jax.device_put(state, replicated(make_mesh(Mesh(), jax.devices()[:num_devices])))


def one_step(task, optimizer, batch, num_devices, state=None, **options):
    state = start(task, optimizer, num_devices) if state is None else state
    return once_step(task, optimizer, num_devices, **options)(state, placed(batch, num_devices))


@functools.cache
def in_one_piece():
    """The step on the ragged batch, on one device without microbatches."""
    return jax.jit(make_train_step(Network(), SGD))(start(Network(), SGD), microbatched(ragged_batch(), 1))


def repeated(rows, num_devices):
    """Each row as often as there are devices, so that every shard has some."""
    return np.repeat(np.asarray(rows), num_devices, axis=0)


@on_each_mesh
@with_each_engine
def test_the_loss_is_weighted_by_tokens_over_all_shards_and_microbatches(engine, num_devices):
    losses = repeated([[1.0, 1, 1, 1], [5.0, 7, 7, 7]], num_devices)
    mask = repeated(np.array([[1, 1, 1, 1], [1, 0, 0, 0]], bool), num_devices)
    _, metrics = one_step(
        TokenLoss(), SGD, microbatched({"losses": losses, "mask": mask}, 2), num_devices, engine=engine
    )
    assert float(metrics["loss"].compute()) == pytest.approx(1.8, rel=1e-6)


@on_each_mesh
@with_each_engine
def test_clipping_acts_on_the_gradient_of_the_whole_batch(engine, num_devices):
    grads = repeated([[2.0, 0.0], [0.0, 2.0]], num_devices)
    batch = microbatched({"grads": grads, "mask": np.ones(len(grads), bool)}, 2)
    state, metrics = one_step(Dot(), SGD_CLIPPED, batch, num_devices, engine=engine)
    np.testing.assert_allclose(state.params["w"], [-0.70710678, -0.70710678], rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm"].compute(), np.sqrt(2), rtol=1e-6)


@with_each_engine
def test_the_schedule_advances_once_a_batch(engine):
    batch = microbatched({"grads": np.ones((32, 2)), "mask": np.ones(32, bool)}, 4)
    state, seen = None, []
    for _ in range(2):
        state, _ = one_step(Dot(), SGD_FALLING, batch, 8, state, engine=engine, learning_rate=falling_rate)
        seen.append(float(state.params["w"][0]))
    np.testing.assert_allclose(seen, [-1.0, -1.1], rtol=1e-6)
    assert int(state.step) == 2


@with_each_engine
@pytest.mark.parametrize("k", [1, 2, 4])
@on_each_mesh
def test_a_ragged_batch_gives_the_update_of_one_device_in_one_piece(num_devices, k, engine):
    batch = ragged_batch()
    expected, expected_metrics = in_one_piece()
    state, metrics = one_step(Network(), SGD, microbatched(batch, k), num_devices, engine=engine)
    for name in ("loss", "grad_norm", "error"):
        np.testing.assert_allclose(metrics[name].compute(), expected_metrics[name].compute(), rtol=1e-6)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected.params), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert np.linalg.norm(a - b) / np.linalg.norm(b) <= 1e-6


@with_each_engine
def test_microbatches_and_batches_without_weight_and_one_nan_change_nothing(engine):
    good = microbatched({"grads": np.ones((32, 2), np.float32), "mask": np.ones(32, bool)}, 4)
    before = start(Dot(), ADAMW_CLIPPED, 8)
    after, _ = one_step(Dot(), ADAMW_CLIPPED, good, 8, before, engine=engine, nonfinite_limit=10)
    assert bits(after.params) != bits(before.params)

    part = {"grads": good["grads"].copy(), "mask": good["mask"].copy()}
    part["grads"][2], part["mask"][2] = np.nan, False
    same, _ = one_step(Dot(), ADAMW_CLIPPED, part, 8, before, engine=engine, nonfinite_limit=10)
    assert bits(same.params) == bits(after.params)

    empty = {"grads": good["grads"], "mask": np.zeros_like(good["mask"])}
    state, metrics = one_step(Dot(), ADAMW_CLIPPED, empty, 8, before, engine=engine, nonfinite_limit=10)
    assert float(metrics["loss"].compute()) == 0.0
    assert (bits(state.params), bits(state.opt_state)) == (bits(before.params), bits(before.opt_state))
    assert int(state.counters.empty) == 1

    bad = {"grads": good["grads"].copy(), "mask": good["mask"]}
    bad["grads"][1, 3] = np.nan
    state, _ = one_step(Dot(), ADAMW_CLIPPED, bad, 8, before, engine=engine, nonfinite_limit=10)
    assert (bits(state.params), bits(state.opt_state)) == (bits(before.params), bits(before.opt_state))
    assert int(state.counters.skipped) == 1


@dataclasses.dataclass(frozen=True)
class Noise:
    """A task whose loss is what its key draws."""

    def init(self, key, batch):
        return {"w": jnp.ones(())}, {}

    def loss(self, params, model_state, batch, key, train):
        drawn = jax.random.normal(key, batch["mask"].shape)
        return Output(Mean.of(params["w"] * drawn, batch["mask"]), {}, model_state)


def test_each_shard_draws_from_a_key_of_its_own():
    mesh = make_mesh(Mesh(), jax.devices())
    batch = {"mask": np.ones((2, 16), bool)}
    state = jitted_init(Noise(), SGD)(jax.random.key(5), batch)
    step = jax.jit(make_train_step(Noise(), SGD, reduction=Once({"w": replicated(mesh)}, mesh=mesh)))
    _, metrics = step(jax.device_put(state, replicated(mesh)), placed(batch, 8))
    fold_in = jax.random.fold_in
    keys = [fold_in(fold_in(fold_in(jax.random.key(5), 1), k), shard) for k in range(2) for shard in range(8)]
    drawn = np.concatenate([jax.random.normal(key, (2,)) for key in keys])
    np.testing.assert_allclose(metrics["loss"].compute(), drawn.mean(), rtol=1e-5)


def experiment(k, mesh, task=None, **changes):
    accumulation = {"microbatches": k, **changes.pop("accumulation", {})}
    optimizer = {"type": "optax:adamw", "learning_rate": 0.01}
    task = {"type": task or Classification(MLP((64, 64), 3))}
    sharding = {"min_size": 0, **changes.pop("sharding", {})}
    config = make_config(
        batch_size=32,
        accumulation=accumulation,
        mesh=mesh,
        optimizer=optimizer,
        task=task,
        sharding=sharding,
        **changes,
    )
    return assemble(parse(config).checked())


def communicated(*arguments, **changes):
    """The bytes of parameters, of reductions and of gathers in a step."""
    made = experiment(*arguments, **changes)
    found = collectives(made.compile_train_step().as_text())
    assert total_bytes(found) == total_bytes(found, "all-reduce", "reduce-scatter", "all-gather")
    params = sum(leaf.size * 4 for leaf in jax.tree.leaves(made.abstract_state.params))
    return params, total_bytes(found, "all-reduce", "reduce-scatter"), total_bytes(found, "all-gather")


DATA, FSDP, BOTH = {"data": 8}, {"data": 1, "fsdp": 8}, {"data": 2, "fsdp": 4}
SCALARS = 4096


@with_each_engine
@pytest.mark.parametrize(
    ("mesh", "zero1"),
    [(DATA, False), (DATA, True), (FSDP, False), (BOTH, False)],
    ids=["data", "zero1", "fsdp", "both"],
)
def test_gradients_are_reduced_once_a_step_whatever_the_microbatches(mesh, zero1, engine):
    options = {"accumulation": {"reduce": "once", "engine": engine}, "sharding": {"zero1": zero1}}
    (params, one, _), (_, four, gathered) = communicated(1, mesh, **options), communicated(4, mesh, **options)
    assert one == four
    assert params <= four <= params + SCALARS
    assert gathered <= (0 if mesh is DATA and not zero1 else params) + SCALARS  # zero1's updates, or fsdp's parameters


@with_each_engine
def test_gradients_that_meet_each_time_are_sent_k_times(engine):
    params, one, _ = communicated(1, DATA, accumulation={"engine": engine})
    _, four, _ = communicated(4, DATA, accumulation={"engine": engine})
    assert params <= one <= params + SCALARS
    assert 4 * params <= four <= 4 * (params + SCALARS)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("mesh", [FSDP, BOTH], ids=["fsdp", "both"])
def test_parameters_are_gathered_at_most_as_often_as_is_asked(mesh, compute):
    precision = {"compute": compute}
    size = jnp.dtype(compute).itemsize / 4
    for gather, times in (("each", 4), ("once", 1)):
        accumulation = {"reduce": "once", "gather": gather}
        params, _, gathered = communicated(4, mesh, accumulation=accumulation, precision=precision)
        assert gathered <= 2 * times * size * params + SCALARS, gather
    params, reduced, gathered = communicated(4, mesh, accumulation={"gather": "once"}, precision=precision)
    assert gathered <= 2 * size * params + SCALARS
    assert reduced >= 4 * params  # the negative control: gradients still meet after each microbatch


@with_each_engine
@pytest.mark.parametrize("mesh", [DATA, FSDP, BOTH], ids=["data", "fsdp", "both"])
def test_twenty_steps_agree_with_gradients_that_meet_each_time(mesh, engine, tmp_path):
    histories = []
    for name, accumulation in {
        "each": {},
        "once": {"reduce": "once"},
        "gathered": {"reduce": "once", "gather": "once"},
    }.items():
        config = make_config(batch_size=32, duration="20 steps", mesh=mesh, sharding={"min_size": 0})
        config.accumulation = {"microbatches": 4, "engine": engine, **accumulation}
        config.log.every = "1 steps"
        result = train(config, tmp_path / name)
        histories.append([(line["loss"], line["grad_norm"]) for line in result.history])
    assert len(histories[0]) == 20
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-5)
    np.testing.assert_allclose(histories[2], histories[0], rtol=1e-5)


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train)(x))


class NnxNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.dense = nnx.BatchNorm(4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.norm(x))


class NnxDropout(nnx.Module):
    def __init__(self, rngs):
        self.dropout, self.dense = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.dropout(x))


@pytest.mark.parametrize("model", [LinenNorm(), NnxNorm], ids=["linen", "nnx"])
def test_batch_statistics_are_refused(model):
    with pytest.raises(ConfigError) as refusal:
        experiment(2, DATA, Classification(model), accumulation={"reduce": "once"})
    text = str(refusal.value)
    for word in ("--config.accumulation.reduce=once", "model state", "mean", "--config.accumulation.reduce=each"):
        assert word in text, text
    experiment(2, DATA, Classification(model))


def test_random_streams_and_a_state_that_is_handed_back_are_no_batch_statistics():
    microbatch = {
        "image": jax.ShapeDtypeStruct((8, 4), jnp.float32),
        "label": jax.ShapeDtypeStruct((8,), jnp.int32),
        "mask": jax.ShapeDtypeStruct((8,), bool),
    }
    assert changed_state(Classification(NnxDropout), microbatch) == []

    def init(key, x):
        return {"w": jnp.zeros((4, 3))}, {"scale": jnp.ones(()), "seen": jnp.zeros(())}

    def apply(params, model_state, x, key, train):
        return model_state["scale"] * x @ params["w"], {**model_state, "seen": model_state["seen"] + 1}

    assert changed_state(Classification((init, apply)), microbatch) == ["seen"]


def test_a_batch_coupled_task_ends_with_exit_2(cli):
    (cli.cwd / "coupled.py").write_text(
        "from jaxtrain import default_config\n"
        "def get_config(variant=''):\n"
        "    config = default_config()\n"
        "    config.duration, config.batch_size = '2 steps', 16\n"
        f"    config.task.type = '{contrastive.__name__}:Contrastive'\n"
        f"    config.task.image = {{'type': '{contrastive.__name__}:Tower', 'width': 16}}\n"
        f"    config.task.text = {{'type': '{contrastive.__name__}:Tower', 'width': 24}}\n"
        f"    config.data = {{'type': '{contrastive.__name__}:Pairs', 'num_pairs': 64}}\n"
        "    return config\n"
    )
    refused = cli.run("--config=coupled.py", "--workdir=w", "--config.accumulation.reduce=once", num_devices=8)
    assert refused.returncode == 2, refused.output
    assert "batch_coupled" in refused.stderr
    assert "--config.accumulation.reduce=each" in refused.stderr
    assert "Traceback" not in refused.output


def test_a_resumed_run_is_bit_equal_and_a_change_of_reduce_is_a_notice(tmp_path, caplog):
    def run(workdir, duration, **accumulation):
        config = make_config(batch_size=32, duration=duration, mesh=BOTH, sharding={"min_size": 0})
        config.accumulation = {"microbatches": 4, "reduce": "once", **accumulation}
        return train(config, tmp_path / workdir).state

    whole = run("whole", "12 steps")
    run("parts", "5 steps")
    assert bits(run("parts", "12 steps").params) == bits(whole.params)
    run("drift", "5 steps")
    caplog.clear()
    changed = run("drift", "12 steps", reduce="each")
    assert int(changed.step) == 12
    assert "accumulation.reduce" in caplog.text
