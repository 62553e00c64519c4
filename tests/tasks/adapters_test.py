"""Foreign models train through the step exactly as in a hand-written optax loop."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxtrain.step import make_eval_step, make_init, make_train_step
from jaxtrain.tasks.adapters import as_model
from jaxtrain.tasks.classification import Classification
from tests.tasks import foreign_models
from tests.tasks.foreign_models import CLASSES, LinenNet, NnxNet, pair_apply, pair_init

INPUTS, ROWS, STEPS = 6, 8, 10
KEY = jax.random.key(7)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
MODELS = {
    "linen": LinenNet(),
    "nnx": functools.partial(NnxNet, INPUTS),
    "pair": (pair_init, pair_apply),
}


class Trained(NamedTuple):
    """What ten steps leave behind, and what an evaluation of it gives."""

    params: Any
    model_state: Any
    losses: list[float]
    eval_logits: Any


@functools.cache
def batches(k):
    """STEPS batches of k microbatches of ROWS examples, each with another number of rows that count."""
    rng = np.random.default_rng(k)
    images = rng.normal(size=(STEPS, k, ROWS, INPUTS)).astype(np.float32)
    labels = rng.integers(0, CLASSES, size=(STEPS, k, ROWS)).astype(np.int32)
    mask = np.arange(ROWS) < rng.integers(1, ROWS + 1, size=(STEPS, k, 1))
    return [{"image": images[i], "label": labels[i], "mask": mask[i]} for i in range(STEPS)]


@functools.cache
def programs(name):
    task = Classification(MODELS[name])
    return jax.jit(make_init(task, OPTIMIZER)), jax.jit(make_train_step(task, OPTIMIZER)), task


def start(name):
    return programs(name)[0](KEY, batches(1)[0])


@functools.cache
def trained(name, k):
    _, train_step, task = programs(name)
    state, losses = start(name), []
    for batch in batches(k):
        state, metrics = train_step(state, batch)
        losses.append(float(metrics["loss"].compute()))
    logits = task.predict(state.params, state.model_state, {"image": batches(1)[0]["image"][0]})
    return Trained(state.params, state.model_state, losses, logits)


def total_loss(logits, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return jnp.where(batch["mask"], losses, 0).sum()


@jax.jit
def update(params, opt_state, grads, weight):
    updates, opt_state = OPTIMIZER.update(jax.tree.map(lambda g: g / weight, grads), opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def hand_loop(k, params, gradients):
    """A plain loop: `gradients(params, microbatch, key) -> (total loss, grads)` keeps the rest of its model's state."""
    opt_state, losses = OPTIMIZER.init(params), []
    for step, batch in enumerate(batches(k), start=1):
        step_key = jax.random.fold_in(KEY, step)
        total, grads = 0.0, None
        for index in range(k):
            microbatch = {name: x[index] for name, x in batch.items()}
            part, part_grads = gradients(params, microbatch, jax.random.fold_in(step_key, index))
            total = total + part
            grads = part_grads if grads is None else jax.tree.map(jnp.add, grads, part_grads)
        weight = float(batch["mask"].sum())
        params, opt_state = update(params, opt_state, grads, weight)
        losses.append(float(total) / weight)
    return params, losses


@jax.jit
def linen_gradients(params, rest, batch, key):
    def loss(params):
        logits, changed = LinenNet().apply(
            {"params": params, **rest}, batch["image"], train=True, rngs={"dropout": key}, mutable=list(rest)
        )
        return total_loss(logits, batch), changed

    return jax.value_and_grad(loss, has_aux=True)(params)


def linen_by_hand(k, variables):
    variables = dict(variables)
    params, kept = variables.pop("params"), [variables]

    def gradients(params, batch, key):
        (total, kept[0]), grads = linen_gradients(params, kept[0], batch, key)
        return total, grads

    params, losses = hand_loop(k, params, gradients)
    logits = LinenNet().apply({"params": params, **kept[0]}, batches(1)[0]["image"][0], train=False)
    return Trained(params, kept[0], losses, logits)


@nnx.jit
def nnx_gradients(model, batch, key):
    nnx.reseed(model, dropout=key)
    return nnx.value_and_grad(lambda model: total_loss(model(batch["image"]), batch))(model)


def nnx_by_hand(k, model):
    model.train()

    def gradients(params, batch, key):
        nnx.update(model, params)
        total, grads = nnx_gradients(model, batch, key)
        return total, grads

    params, losses = hand_loop(k, nnx.state(model, nnx.Param), gradients)
    nnx.update(model, params)
    model.eval()
    logits = model(batches(1)[0]["image"][0])
    rest = nnx.state(model, nnx.All(nnx.Not(nnx.Param), nnx.Not(nnx.RngState)))
    return Trained(plain(params), plain(rest), losses, logits)


def plain(state):
    return jax.tree.map(lambda x: x, nnx.to_pure_dict(state))


@jax.jit
def pair_gradients(params, rest, batch, key):
    def loss(params):
        logits, changed = pair_apply(params, rest, batch["image"], key, True)
        return total_loss(logits, batch), changed

    return jax.value_and_grad(loss, has_aux=True)(params)


def pair_by_hand(k, params, rest):
    kept = [rest]

    def gradients(params, batch, key):
        (total, kept[0]), grads = pair_gradients(params, kept[0], batch, key)
        return total, grads

    params, losses = hand_loop(k, params, gradients)
    return Trained(params, kept[0], losses, pair_apply(params, kept[0], batches(1)[0]["image"][0], None, False)[0])


def by_hand(name, k):
    """Initialize and train with Flax and optax alone. The initial key is the run's with 0 folded in."""
    key, inputs = jax.random.fold_in(KEY, 0), batches(1)[0]["image"][0]
    if name == "linen":
        return linen_by_hand(k, jax.jit(LinenNet().init)({"params": key}, inputs))
    if name == "nnx":
        return nnx_by_hand(k, NnxNet(INPUTS, rngs=nnx.Rngs(params=key, dropout=1)))
    return pair_by_hand(k, *pair_init(key, inputs))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_ten_steps_equal_a_hand_written_optax_loop(name, k):
    actual, expected = trained(name, k), by_hand(name, k)
    np.testing.assert_allclose(actual.losses, expected.losses, rtol=1e-6)
    np.testing.assert_allclose(actual.eval_logits, expected.eval_logits, rtol=1e-5, atol=1e-6)
    for part in ("params", "model_state"):
        ours, theirs = leaves(getattr(actual, part)), leaves(getattr(expected, part))
        assert ours.keys() == theirs.keys()
        for path, leaf in ours.items():
            error = np.linalg.norm(leaf - theirs[path]) / max(np.linalg.norm(theirs[path]), 1e-30)
            assert error <= 1e-6, (part, path, error)


def leaves(tree):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


@pytest.mark.parametrize("name", MODELS)
def test_training_moved_every_parameter_and_statistic(name):
    before, after = start(name), trained(name, 1)
    for part in ("params", "model_state"):
        old, new = leaves(getattr(before, part)), leaves(getattr(after, part))
        assert old
        assert [path for path in old if np.array_equal(old[path], new[path])] == []


@pytest.mark.parametrize(("name", "seen"), [("linen", ("usage", "examples")), ("nnx", ("examples",))])
def test_state_of_the_models_own_kinds_is_kept(name, seen):
    value = functools.reduce(lambda level, part: level[part], seen, trained(name, 2).model_state)
    assert int(value) == STEPS * 2 * ROWS


def test_a_shared_submodule_has_one_set_of_parameters():
    params = start("nnx").params
    assert len({"up", "down"} & params.keys()) == 1
    assert all(type(key.key) is str for path, _ in jax.tree.leaves_with_path(params) for key in path)


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_repeats_itself_and_leaves_the_model_state_alone(name):
    task, state = programs(name)[2], start(name)
    inputs = batches(1)[0]["image"][0]
    model = as_model(task.model)
    first, after = model.apply(state.params, state.model_state, inputs, None, False)
    again, _ = model.apply(state.params, state.model_state, inputs, jax.random.key(1), False)
    np.testing.assert_array_equal(first, again)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), after, state.model_state))
    metrics = make_eval_step(task)(state.params, state.model_state, {n: x[0] for n, x in batches(1)[0].items()})
    expected = total_loss(first, {n: x[0] for n, x in batches(1)[0].items()})
    np.testing.assert_allclose(metrics["loss"].total, expected, rtol=1e-6)


class Dropouts(nnx.Module):
    def __init__(self, rngs):
        self.dropouts = nnx.List([nnx.Dropout(0.5, rngs=rngs) for _ in range(2)])
        self.noise = rngs.noise.fork()

    def __call__(self, x):
        return jnp.stack([*(dropout(x) for dropout in self.dropouts), jax.random.normal(self.noise(), x.shape)])


def test_nnx_streams_follow_the_key_and_differ_from_each_other():
    model, x = as_model(Dropouts), jnp.ones(64)
    params, model_state = model.init(jax.random.key(0), x)
    assert (params, model_state) == ({}, {})
    first, again, other = (model.apply(params, model_state, x, jax.random.key(seed), True)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert all(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert not np.array_equal(first[0], first[1])


def test_an_nnx_instance_starts_from_its_present_values_and_stays_as_it_is():
    instance = NnxNet(INPUTS, rngs=nnx.Rngs(3))
    model = as_model(instance)
    inputs = batches(1)[0]["image"][0]
    params, model_state = model.init(KEY, inputs)
    np.testing.assert_array_equal(params["first"]["kernel"], instance.first.kernel.get_value())
    _, changed = model.apply(params, model_state, inputs, KEY, True)
    assert int(changed["examples"]) == ROWS
    assert int(instance.examples.get_value()) == 0


class Deterministic(nn.Module):
    """Told by the older of the two names; `twice` is another method."""

    def __call__(self, x, deterministic):
        return x * (1 if deterministic else 3)

    def twice(self, x, train):
        return x * (2 if train else 1)


def test_a_method_is_told_the_mode_by_the_name_it_takes():
    model = as_model(Deterministic())
    x = jnp.ones(())
    outputs = [model.apply({}, {}, x, KEY, train)[0] for train in (True, False)]
    assert [float(output) for output in outputs] == [3.0, 1.0]
    assert float(model.apply({}, {}, x, KEY, True, method="twice")[0]) == 2.0


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("bfloat16", "bfloat16"), "bfloat16"),
        (("bfloat16", "float32"), "float32"),
        (("float32", "float32"), "float32"),
    ],
)
def test_inputs_are_converted_only_when_all_parameters_have_16_bits(dtypes, expected):
    seen = []
    model = as_model((pair_init, lambda params, state, inputs, key, train: (seen.append(inputs), state)))
    params = {name: jnp.zeros(2, dtype) for name, dtype in zip("ab", dtypes, strict=True)}
    model.apply(params, {}, {"x": jnp.ones(2), "tokens": jnp.ones(2, jnp.int32)}, None, False)
    assert (seen[0]["x"].dtype, seen[0]["tokens"].dtype) == (expected, "int32")


@pytest.mark.parametrize("thing", [3, "model", (pair_init,), (pair_init, 1), lambda x: x, nn.Module])
def test_what_is_no_model_is_refused_with_what_would_be(thing):
    with pytest.raises(TypeError, match=r"linen module, a flax nnx module .* or a pair \(init, apply\)"):
        as_model(thing)


def test_a_pair_has_no_other_methods():
    with pytest.raises(TypeError, match="no method 'features'"):
        as_model((pair_init, pair_apply)).apply({}, {}, jnp.ones(1), None, False, method="features")


def test_the_foreign_models_import_nothing_of_jaxtrain():
    with open(foreign_models.__file__) as file:
        assert not [line for line in file if "import" in line and "jaxtrain" in line and not line.startswith('"""')]
