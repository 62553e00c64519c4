"""Optimizers by import path, what their groups and decay masks do, and schedules that would do nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.config import Config, Mesh, ParamGroup, Sharding
from jaxtrain.config.schema import Optimizer, Schedule
from jaxtrain.errors import ConfigError
from jaxtrain.metrics import Mean
from jaxtrain.models.transformer import Transformer
from jaxtrain.optimizers import make_optimizer, sgd
from jaxtrain.param_groups import path_of
from jaxtrain.partitioning import state_shardings
from jaxtrain.sharding import BATCH_AXES, make_mesh
from jaxtrain.step import make_init, make_train_step
from jaxtrain.tasks import Output


def config_of(type_="optax:sgd", rate=0.1, schedule=None, warmup="", clip_norm=0.0, groups=None, **options):
    return Config(
        optimizer=Optimizer(type=type_, learning_rate=rate, options=options),
        schedule=Schedule(**(schedule or {}), warmup=warmup),
        clip_norm=clip_norm,
        param_groups=groups or {},
        duration="20 steps",
    )


OPTIMIZERS = {
    "adamw": config_of("optax:adamw", 1e-3),
    "lion": config_of("optax:lion", 1e-3),
    "adafactor": config_of("optax:adafactor", 1e-3, min_dim_size_to_factor=8),
    "muon": config_of("optax.contrib:muon", 1e-3),
    "sgd": config_of("optax:sgd", 1e-2, momentum=0.9),
    # A partition: the matrices that are decayed by a strength of their own, and the rest.
    "groups": config_of("optax:adamw", 1e-3, groups={"last": ParamGroup("last", 0.5, 0.1)}),
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
    "groups": {f"{moment}/{name}": SPLIT[name] for moment in ("mu", "nu") for name in SPLIT},
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


def factors(schedule):
    return np.asarray(jax.vmap(schedule)(jnp.arange(30)))


def test_a_schedule_ends_with_the_run_and_makes_its_last_update_above_zero():
    rate = make_optimizer(config_of(rate=2.0, schedule={"type": "jaxtrain.schedules:linear"}), 20, 4).learning_rate
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
    config = dataclasses.replace(config_of(schedule={"type": "jaxtrain.schedules:cosine"}), duration="8 hours")
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
    made = make_optimizer(config_of(schedule={"type": "jaxtrain.schedules:linear"}, warmup="2 steps"), 6, 2)
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
    params, grads = {"w": jnp.ones((3, 1))}, {"w": jnp.array([[1.0], [-2.0], [0.5]])}
    for options in ({}, {"b1": 0.5, "weight_decay": 0.1}):
        made = make_optimizer(config_of("optax:adamw", 0.01, **options), 20, 0).transformation
        plain = optax.adamw(0.01, **options)
        actual, _ = made.update(grads, made.init(params), params)
        expected, _ = plain.update(grads, plain.init(params), params)
        np.testing.assert_allclose(actual["w"], expected["w"], rtol=1e-6)


def test_groups_equal_an_optax_run_of_their_own_for_each():
    """Rate factor and decay of two groups, against two optimizers written down by hand."""
    groups = {"first": ParamGroup("^first$", 0.1), "last": ParamGroup("^last$", 3.0, 0.2)}
    schedule = {"type": "jaxtrain.schedules:linear"}
    made = make_optimizer(config_of("optax:adamw", 0.01, schedule, groups=groups, weight_decay=0.05), 20, 0)
    rates, decays = {"first": 1e-3, "last": 3e-2, "bias": 0.01, "scale": 0.01}, {"first": 0.05, "last": 0.2}
    by_hand = {
        name: optax.adamw(optax.linear_schedule(rate, 0.0, 20), weight_decay=decays.get(name, 0.0))
        for name, rate in rates.items()
    }
    task = Regression()
    params, _ = task.init(jax.random.key(0), BATCH)

    def mean_loss(params):
        loss = task.loss(params, {}, jax.tree.map(lambda x: x[0], BATCH), None, True).loss
        return loss.total / loss.weight

    @jax.jit
    def alone(params, states):
        grads, moved, kept = jax.grad(mean_loss)(params), {}, {}
        for name, optimizer in by_hand.items():
            update, kept[name] = optimizer.update(grads[name], states[name], params[name])
            moved[name] = params[name] + update
        return moved, kept

    state = jax.jit(make_init(task, made.transformation))(jax.random.key(0), BATCH)
    params, states = state.params, {name: by_hand[name].init(state.params[name]) for name in by_hand}
    train_step = jax.jit(make_train_step(task, made.transformation))
    for _ in range(5):
        state, _ = train_step(state, BATCH)
        params, states = alone(params, states)
    for name in params:
        assert np.linalg.norm(state.params[name] - params[name]) <= 1e-6 * np.linalg.norm(params[name]), name
    plain = initial_states()["adamw"].params
    assert all(np.linalg.norm(params[name] - plain[name]) > 1e-3 * np.linalg.norm(plain[name]) for name in params)


@functools.cache
def scanned_params():
    """Of a transformer with layers in a scan; nothing is 0, so that any decay shows."""
    model = Transformer(vocab_size=5, num_layers=2, embed=8, heads=2, max_seq=4, norm="layernorm", scan_layers=True)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    return jax.tree.map(lambda x: np.random.default_rng(0).uniform(0.5, 1, x.shape).astype(np.float32), shapes)


# The mask of optax, a decay that reaches what its mask does not, none at all.
DECAYING = {
    "adamw": config_of("optax:adamw", 0.1, weight_decay=0.1),
    "groups": config_of("optax:adamw", 0.1, groups={"mlp": ParamGroup("mlp", weight_decay=0.3)}, weight_decay=0.1),
    "muon": config_of("optax.contrib:muon", 0.1, weight_decay=0.1, adam_weight_decay=0.1),
    "novograd": config_of("optax:novograd", 0.1, weight_decay=0.1),
    "adafactor": config_of("optax:adafactor", 0.1, weight_decay_rate=0.1),
}


def moved_by_decay(transformations):
    """For each optimizer, the paths of what an update without gradients moves."""

    @jax.jit
    def update(params):
        grads = jax.tree.map(jnp.zeros_like, params)
        updates = {name: t.update(grads, t.init(params), params)[0] for name, t in transformations.items()}
        return {name: optax.apply_updates(params, update) for name, update in updates.items()}

    before = jax.tree.leaves_with_path(scanned_params())
    return {
        name: {
            path_of(path)
            for (path, old), new in zip(before, jax.tree.leaves(after), strict=True)
            if old.tobytes() != np.asarray(new).tobytes()
        }
        for name, after in update(scanned_params()).items()
    }


def test_without_gradients_decay_moves_matrices_and_no_bit_of_scanned_norms():
    made = {name: make_optimizer(config, 20, 0).transformation for name, config in DECAYING.items()}
    made["by rank"] = optax.adamw(0.1, weight_decay=0.1, mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params))
    made["own mask"] = make_optimizer(
        config_of(
            "optax:adamw", 0.1, weight_decay=0.1, mask=lambda params: jax.tree.map(lambda x: x.ndim == 1, params)
        ),
        20,
        0,
    ).transformation
    paths = {path_of(path) for path, _ in jax.tree.leaves_with_path(scanned_params())}
    norms = {f"layers/{norm}/{part}" for norm in ("attention_norm", "mlp_norm") for part in ("scale", "bias")}
    matrices = {path for path in paths if path.endswith(("/embedding", "/kernel"))}
    assert norms < paths
    moved = moved_by_decay(made)
    assert moved.pop("by rank") == matrices | norms  # as masks are often written: it decays the norms of stacked layers
    assert moved.pop("own mask") == {"final_norm/scale", "final_norm/bias"}
    assert moved == dict.fromkeys(DECAYING, matrices)


def test_a_decay_of_a_group_is_refused_where_the_optimizer_has_none():
    groups = {"head": ParamGroup("head", weight_decay=0.1)}
    for type_ in ("optax:sgd", optax.sgd(0.1)):
        with pytest.raises(ConfigError, match=r"--config.param_groups.head.weight_decay=0.1: .* has no weight decay"):
            make_optimizer(config_of(type_, groups=groups), 20, 0)


def frozen_run(config, num_steps=3, engine="multisteps", batch=BATCH):
    """The made optimizer, and the states before and after some steps."""
    made = make_optimizer(config, 20, 0)
    before = jax.jit(make_init(Regression(), made.transformation))(jax.random.key(0), batch)
    # Not every -0.0 and subnormal survives an addition of 0.
    first = before.params["first"].at[0, :2].set(jnp.array([-0.0, 1e-40]))
    before = dataclasses.replace(before, params={**before.params, "first": first})
    step = jax.jit(make_train_step(Regression(), made.transformation, engine=engine, frozen=made.groups.frozen))
    after = before
    for _ in range(num_steps):
        after, _ = step(after, batch)
    return before, after, step


FREEZE = {"first": ParamGroup("^first$", freeze=True)}


@pytest.mark.parametrize(("engine", "k"), [("multisteps", 1), ("multisteps", 2), ("fused", 2)])
def test_frozen_parameters_keep_every_bit_and_have_no_moments(engine, k):
    batch = {name: x.reshape(k, -1, *x.shape[2:]) for name, x in BATCH.items()}
    before, after, _ = frozen_run(config_of("optax:adamw", 0.1, groups=FREEZE), engine=engine, batch=batch)
    for name in before.params:
        same = np.asarray(before.params[name]).tobytes() == np.asarray(after.params[name]).tobytes()
        assert same == (name == "first"), name
    moments = [leaf for leaf in jax.tree.leaves(after.opt_state) if leaf.ndim or leaf.dtype != jnp.int32]
    num_bytes = {name: leaf.nbytes for name, leaf in after.params.items()}
    assert sum(leaf.nbytes for leaf in moments) == 2 * (sum(num_bytes.values()) - num_bytes["first"])
    with_all = jax.eval_shape(make_optimizer(config_of("optax:adamw", 0.1), 20, 0).transformation.init, before.params)
    all_moments = [leaf for leaf in jax.tree.leaves(with_all) if leaf.ndim or leaf.dtype != jnp.int32]
    assert sum(leaf.size * 4 for leaf in all_moments) == 2 * sum(num_bytes.values())  # else the bytes above say nothing


def test_gradients_of_frozen_parameters_are_not_computed():
    def flops(groups):
        before, _, step = frozen_run(config_of("optax:adamw", 0.1, groups=groups), num_steps=0)
        return step.lower(before, BATCH).compile().cost_analysis()["flops"]

    matmul = 2 * 16 * 16 * 24  # batch x in x out
    assert flops({}) - flops(FREEZE) >= matmul


@dataclasses.dataclass(frozen=True)
class Slopes:
    """A task whose gradients are 3 and 4."""

    def init(self, key, batch):
        return {"a": jnp.ones(1), "b": jnp.ones(1)}, {}

    def loss(self, params, model_state, batch, key, train):
        return Output(Mean.of(3 * params["a"] + 4 * params["b"], batch["mask"]), {}, {})


@pytest.mark.parametrize(("groups", "norm"), [({}, 5.0), ({"b": ParamGroup("^b$", freeze=True)}, 3.0)])
def test_frozen_parameters_count_in_no_norm(groups, norm):
    made = make_optimizer(config_of(rate=1.0, clip_norm=1.0, groups=groups), 20, 0)
    batch = {"mask": np.ones((1, 1), bool)}
    state = make_init(Slopes(), made.transformation)(jax.random.key(0), batch)
    step = jax.jit(make_train_step(Slopes(), made.transformation, frozen=made.groups.frozen))
    state, metrics = step(state, batch)
    assert float(metrics["grad_norm"].compute()) == pytest.approx(norm, rel=1e-6)
    assert float(state.params["a"][0]) == pytest.approx(1 - 3 / norm, abs=1e-6)


def test_the_state_keeps_its_structure_when_clipping_is_turned_on():
    params = {"w": jnp.ones((2, 2))}
    states = [
        make_optimizer(config_of("optax:adamw", clip_norm=norm), 20, 0).transformation.init(params) for norm in (0, 1)
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


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
