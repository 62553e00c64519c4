"""Optimizers by import path, the rates they use, and schedules that would do nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.config import Config, Mesh, Sharding
from jaxtrain.config.schema import Optimizer, Schedule
from jaxtrain.errors import ConfigError
from jaxtrain.metrics import Mean
from jaxtrain.optimizers import cosine, linear, make_optimizer, sgd, with_warmup
from jaxtrain.partitioning import state_shardings
from jaxtrain.sharding import BATCH_AXES, make_mesh
from jaxtrain.step import make_init, make_train_step
from jaxtrain.tasks import Output


def config_of(type_="optax:sgd", rate=0.1, schedule=None, warmup="", clip_norm=0.0, **options):
    schedule = Schedule(**(schedule or {}), warmup=warmup)
    optimizer = Optimizer(type=type_, learning_rate=rate, options=options)
    return Config(optimizer=optimizer, schedule=schedule, clip_norm=clip_norm, duration="20 steps")


OPTIMIZERS = {
    "adamw": config_of("optax:adamw", 1e-3),
    "lion": config_of("optax:lion", 1e-3),
    "adafactor": config_of("optax:adafactor", 1e-3, min_dim_size_to_factor=8),
    "muon": config_of("optax.contrib:muon", 1e-3),
    "sgd": config_of("optax:sgd", 1e-2, momentum=0.9),
}


@dataclasses.dataclass(frozen=True)
class Regression:
    def init(self, key, batch):
        first, second = jax.random.split(key)
        return {
            "bias": jnp.ones(24) / 8,
            "first": jax.random.normal(first, (16, 24)) / 4,
            "last": jax.random.normal(second, (24, 8)) / 5,
            "scale": jnp.ones(()),
        }, {}

    def loss(self, params, model_state, batch, key, train):
        hidden = jnp.tanh(batch["x"] @ params["first"] + params["bias"])
        return Output(Mean.of(((hidden @ params["last"] * params["scale"]) ** 2).sum(-1), batch["mask"]), {}, {})


BATCH = {
    "x": np.random.default_rng(0).normal(size=(1, 16, 16)).astype(np.float32),
    "mask": np.arange(16)[None] % 5 != 0,
}


@functools.cache
def transformation(name):
    return make_optimizer(OPTIMIZERS[name], 20, 0).transformation


@functools.cache
def initial_states():
    inits = {name: make_init(Regression(), transformation(name)) for name in OPTIMIZERS}
    return jax.jit(lambda key: {name: init(key, BATCH) for name, init in inits.items()})(jax.random.key(0))


@functools.cache
def shardings(name, fsdp):
    mesh = make_mesh(Mesh(data=1, fsdp=fsdp), jax.devices()[:fsdp])
    abstract = jax.eval_shape(lambda state: state, initial_states()[name])
    return mesh, state_shardings(mesh, abstract, transformation(name), Sharding(min_size=0))


@functools.cache
def one_step(fsdp):
    """The state after one step of every optimizer, all in one program."""
    placed = {name: shardings(name, fsdp)[1] for name in OPTIMIZERS}
    mesh = shardings("sgd", fsdp)[0]
    steps = {name: make_train_step(Regression(), transformation(name)) for name in OPTIMIZERS}
    together = jax.jit(
        lambda states, batch: {name: steps[name](states[name], batch)[0] for name in steps}, out_shardings=placed
    )
    batch = jax.device_put(BATCH, NamedSharding(mesh, PartitionSpec(None, BATCH_AXES)))
    return together(jax.device_put(initial_states(), placed), batch)


SPLIT = {"bias": ("fsdp",), "first": (None, "fsdp"), "last": ("fsdp",), "scale": ()}
MUON, ADAM = ("first", "last"), ("bias", "scale")
STATES = {
    "adamw": {f"{moment}/{name}": SPLIT[name] for moment in ("mu", "nu") for name in SPLIT},
    "lion": {f"mu/{name}": SPLIT[name] for name in SPLIT},
    "sgd": {f"trace/{name}": SPLIT[name] for name in SPLIT},
    "muon": {f"mu/{name}": SPLIT[name] for name in SPLIT} | {f"nu/{name}": SPLIT[name] for name in ADAM},
    # Factors have shapes of their own: [16] and [24] of `first`, [8] and [24] of `last`; [1] stands for nothing.
    "adafactor": {
        **{f"{factor}/{name}": ("fsdp",) for factor in ("v_row", "v_col") for name in MUON},
        **{f"{factor}/{name}": () for factor in ("v_row", "v_col") for name in ADAM},
        **{f"v/{name}": SPLIT[name] if name in ADAM else () for name in SPLIT},
    },
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_state_is_sharded_like_its_parameters(name):
    _, placed = shardings(name, 8)
    assert {path: tuple(leaf.spec) for path, leaf in named(placed.params).items()} == SPLIT
    found = {path: tuple(leaf.spec) for path, leaf in named(placed.opt_state).items()}
    moments = {path: spec for path, spec in found.items() if path.rpartition("/")[2] in SPLIT}
    assert moments == STATES[name]
    assert all(spec == () for path, spec in found.items() if path not in moments)  # counts


def named(tree):
    """Leaves by the last two names of their paths: which moment of which parameter."""
    paths = (
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in jax.tree.leaves_with_path(tree)
    )
    return {"/".join(path.split("/")[-2:]): leaf for path, leaf in paths}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_on_eight_devices_equals_one_step_on_one(name):
    before, alone, sharded = initial_states()[name], one_step(1)[name], one_step(8)[name]
    for part in ("params", "opt_state"):
        for (path, a), b in zip(
            jax.tree.leaves_with_path(getattr(sharded, part)), jax.tree.leaves(getattr(alone, part)), strict=True
        ):
            a, b = np.asarray(a), np.asarray(b)
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b), jax.tree_util.keystr(path)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before.params, sharded.params)
    assert all(jax.tree.leaves(moved))


UPDATES = np.arange(30)


def factors(schedule):
    return np.asarray(jax.vmap(schedule)(jnp.asarray(UPDATES, jnp.int32)))


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_schedules_follow_their_formulas_and_stay_at_their_end(final):
    progress = np.minimum(UPDATES / 20, 1)
    expected = final + (1 - final) * (1 + np.cos(np.pi * progress)) / 2
    np.testing.assert_allclose(factors(cosine(20, final)), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(factors(linear(20, final)), 1 - (1 - final) * progress, rtol=1e-5, atol=1e-7)


def test_a_warmup_rises_to_the_peak_and_then_the_schedule_begins():
    warmed = factors(with_warmup(linear(20), 4))
    np.testing.assert_allclose(warmed[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(warmed[4:], factors(linear(20))[:26], rtol=1e-6)


def test_a_schedule_ends_with_the_run_and_makes_its_last_update_above_zero():
    rate = make_optimizer(config_of(rate=2.0, schedule={"type": "jaxtrain.optimizers:linear"}), 20, 4).learning_rate
    rates = factors(rate)
    assert rates.dtype == np.float32
    np.testing.assert_allclose(rates[[0, 3, 4, 19, 20]], [0.4, 1.6, 2.0, 2.0 / 16, 0.0], rtol=1e-5)


def test_an_optax_schedule_is_a_factor_of_the_learning_rate():
    schedule = {
        "type": "optax:warmup_cosine_decay_schedule",
        "options": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 20},
    }
    rates = factors(make_optimizer(config_of(rate=0.5, schedule=schedule), 20, 0).learning_rate)
    expected = factors(optax.warmup_cosine_decay_schedule(0.0, 0.5, 5, 20))
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert rates.max() == 0.5


@pytest.mark.parametrize("warmup_steps", [20, 21, 1000])
def test_a_warmup_as_long_as_the_run_is_refused(warmup_steps):
    with pytest.raises(ConfigError, match=r"--config.schedule.warmup.*never peaks.*19 steps"):
        make_optimizer(config_of(warmup=f"{warmup_steps} steps"), 20, warmup_steps)
    make_optimizer(config_of(warmup="19 steps"), 20, 19)


@pytest.mark.parametrize("warmup_steps", [0, 3])
@pytest.mark.parametrize(
    "schedule",
    [
        {
            "type": "optax:linear_schedule",
            "options": {"init_value": 0.0, "end_value": 1.0, "transition_steps": 0},
        },
        {
            "type": "optax:warmup_constant_schedule",
            "options": {"init_value": 0.0, "peak_value": 0.0, "warmup_steps": 0},
        },
        {"type": "optax:constant_schedule", "options": {"value": 0.0}},
        {"type": "optax:constant_schedule", "options": {"value": float("nan")}},
    ],
)
def test_a_schedule_that_stays_at_zero_is_refused_also_behind_a_warmup(schedule, warmup_steps):
    with pytest.raises(ConfigError, match=r"--config.schedule.type"):
        make_optimizer(config_of(schedule=schedule, warmup=f"{warmup_steps} steps"), 20, warmup_steps)


def test_a_schedule_that_needs_the_number_of_steps_is_refused_for_a_run_measured_in_time():
    config = dataclasses.replace(config_of(schedule={"type": "jaxtrain.optimizers:cosine"}), duration="8 hours")
    with pytest.raises(ConfigError, match=r"--config.schedule.type.*number of steps.*8 hours"):
        make_optimizer(config, None, 0)
    constant = make_optimizer(dataclasses.replace(config_of(), duration="8 hours"), None, 0)
    np.testing.assert_allclose(factors(constant.learning_rate), 0.1, rtol=1e-6)


@dataclasses.dataclass(frozen=True)
class Slope:
    """A task whose gradient is the batch's own `slope`."""

    def init(self, key, batch):
        return {"w": jnp.zeros(batch["slope"].shape[1:])}, {}

    def loss(self, params, model_state, batch, key, train):
        return Output(Mean.of(batch["slope"] @ params["w"], batch["mask"]), {}, {})


def slope(*values):
    return {"slope": np.asarray([[values]], np.float32), "mask": np.ones((1, 1), bool)}


def test_the_logged_rate_is_the_one_used_also_after_batches_without_an_update():
    made = make_optimizer(config_of(schedule={"type": "jaxtrain.optimizers:linear"}, warmup="2 steps"), 6, 2)
    train_step = jax.jit(
        make_train_step(Slope(), made.transformation, learning_rate=made.learning_rate, nonfinite_limit=9)
    )
    state = jax.jit(make_init(Slope(), made.transformation))(jax.random.key(0), slope(1))
    used, logged = [], []
    for value in (1, np.nan, 1, 1, np.inf, np.nan, 1):
        before = float(state.params["w"][0])
        state, metrics = train_step(state, slope(value))
        if np.isfinite(value):
            used.append(before - float(state.params["w"][0]))
            logged.append(float(metrics["learning_rate"].compute()))
    np.testing.assert_allclose(logged, [0.1 / 3, 0.2 / 3, 0.1, 0.075], rtol=1e-6)
    np.testing.assert_allclose(used, logged, rtol=1e-5)


def test_clipping_comes_before_the_optimizer():
    made = make_optimizer(config_of(rate=1.0, clip_norm=1.0, momentum=0.5), 20, 0)
    params = {"w": jnp.zeros(2)}
    updates, opt_state = made.transformation.update(
        {"w": jnp.array([3.0, 4.0])}, made.transformation.init(params), params
    )
    np.testing.assert_allclose(updates["w"], [-0.6, -0.8], rtol=1e-6)
    updates, _ = made.transformation.update({"w": jnp.zeros(2)}, opt_state, params)
    np.testing.assert_allclose(updates["w"], [-0.3, -0.4], rtol=1e-6)  # momentum holds the clipped gradient


def test_options_reach_the_optimizer_and_its_defaults_are_its_own():
    params, grads = {"w": jnp.ones(3)}, {"w": jnp.array([1.0, -2.0, 0.5])}
    for options in ({}, {"b1": 0.5, "weight_decay": 0.1}):
        made = make_optimizer(config_of("optax:adamw", 0.01, **options), 20, 0).transformation
        plain = optax.adamw(0.01, **options)
        actual, _ = made.update(grads, made.init(params), params)
        expected, _ = plain.update(grads, plain.init(params), params)
        np.testing.assert_allclose(actual["w"], expected["w"], rtol=1e-6)


def test_the_decay_of_sgd_is_part_of_the_gradient_and_passes_through_the_momentum():
    rate, momentum, decay = 0.1, 0.9, 0.3
    params = {"a": np.array([1.0, -2.0], np.float32), "b": np.array([4.0], np.float32)}
    grads = [
        {"a": np.array([0.5, 1.0], np.float32), "b": np.array([2.0], np.float32)},
        {"a": np.ones(2), "b": np.ones(1)},
    ]
    optimizer = sgd(rate, momentum, weight_decay=decay, mask={"a": True, "b": False})
    state, current = optimizer.init(params), params
    velocity = {"a": 0.0, "b": 0.0}
    for gradient in grads:
        updates, state = optimizer.update(gradient, state, current)
        for name, share in (("a", decay), ("b", 0.0)):
            velocity[name] = momentum * velocity[name] + gradient[name] + share * current[name]
            np.testing.assert_allclose(updates[name], -rate * velocity[name], rtol=1e-6)
        current = optax.apply_updates(current, updates)
