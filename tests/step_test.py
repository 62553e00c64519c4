"""One step: what it counts, sums, draws, casts and gives away."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from jaxtrain.compiling import compile_ahead
from jaxtrain.metrics import Mean
from jaxtrain.models.transformer import Transformer
from jaxtrain.step import drain, eval_params, make_eval_step, make_init, make_train_step
from jaxtrain.tasks import Output
from jaxtrain.tasks.language_modeling import LanguageModeling

KEY = jax.random.key(5)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Largest:
    """A metric without a neutral element: zeros are not one."""

    value: Any

    def merge(self, other):
        return Largest(jnp.maximum(self.value, other.value))

    def compute(self):
        return self.value


@dataclasses.dataclass(frozen=True)
class Probe:
    """The gradient of parameter `p` is the batch's `p`; the loss has an offset that no gradient sees."""

    def init(self, key, batch):
        return {name: jnp.zeros(batch[name].shape[1:]) for name in "abc"}, {"num_calls": jnp.zeros(())}

    def loss(self, params, model_state, batch, key, train):
        losses = sum(batch[name] @ params[name] for name in "abc") + batch["offset"]
        metrics = {
            "largest": Largest(jnp.max(batch["offset"])),
            "noise": Mean.of(jax.random.uniform(key, batch["mask"].shape), batch["mask"]),
        }
        state = {"num_calls": model_state["num_calls"] + 1} if train else model_state
        return Output(Mean.of(losses, batch["mask"]), metrics, state)


LIMIT = 3
OPTIMIZERS = {1: "fused", 2: "multisteps"}  # k -> engine; one microbatch passes no engine


def batch_of(k, offset=(0.0,), weight=4, **grads):
    """4 examples in k microbatches, the first `weight` of which count."""
    batch = {name: np.full((4, 2), grads.get(name, 1.0), np.float32) for name in "abc"}
    batch["offset"] = np.resize(np.asarray(offset, np.float32), 4)
    batch["mask"] = np.arange(4) < weight
    return {name: x.reshape(k, -1, *x.shape[1:]) for name, x in batch.items()}


@functools.cache
def programs(k):
    optimizer = optax.sgd(0.1)
    init = jax.jit(make_init(Probe(), optimizer))
    return init, jax.jit(make_train_step(Probe(), optimizer, engine=OPTIMIZERS[k], nonfinite_limit=LIMIT))


def run(k, batches):
    """The states and metrics after each batch, on the host; the first has no metrics."""
    init, train_step = programs(k)
    state = init(KEY, batch_of(k))
    seen = [(state, None)]
    for batch in batches:
        state, metrics = train_step(state, batch)
        seen.append((state, metrics))
    return seen


def counters(state):
    return {field.name: getattr(state.counters, field.name).item() for field in dataclasses.fields(state.counters)}


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(("leaf", "name"), [(0, "a"), (1, "b"), (2, "c")])
def test_a_gradient_that_is_not_finite_is_named_by_its_leaf(k, leaf, name):
    (before, _), (after, metrics) = run(k, [batch_of(k, **{name: np.nan})])
    assert counters(after) == counters(before) | {"skipped": 1, "in_a_row": 1, "bad_step": 1, "bad_leaf": leaf}
    assert bits((after.params, after.opt_state, after.model_state)) == bits(
        (before.params, before.opt_state, before.model_state)
    )
    assert np.isnan(metrics["grad_norm"].compute())


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("offset", [np.inf, np.nan])
def test_a_loss_that_is_not_finite_is_skipped_though_its_gradients_are(k, offset):
    (before, _), (after, _) = run(k, [batch_of(k, offset=(0.0, 0.0, 0.0, offset))])
    assert counters(after) == counters(before) | {"skipped": 1, "in_a_row": 1, "bad_step": 1, "bad_leaf": -1}
    assert bits(after.params) == bits(before.params)


@pytest.mark.parametrize("k", [1, 2])
def test_only_the_limit_in_a_row_halts_and_then_nothing_is_applied(k):
    good, bad, empty = batch_of(k), batch_of(k, b=np.inf), batch_of(k, weight=0)
    seen = run(k, [bad, bad, good, bad, empty, bad, empty, bad, good, bad, empty])
    told = [(c["skipped"], c["empty"], c["in_a_row"], c["bad_step"], c["halted"]) for c in map(counters, states(seen))]
    assert told[1:] == [
        (1, 0, 1, 1, False),
        (2, 0, 2, 1, False),
        (2, 0, 0, 1, False),
        (3, 0, 1, 4, False),
        (3, 1, 1, 4, False),
        (4, 1, 2, 4, False),
        (4, 2, 2, 4, False),
        (5, 2, 3, 4, True),
        (5, 2, 3, 4, True),
        (5, 2, 3, 4, True),
        (5, 2, 3, 4, True),
    ]
    halted, last = seen[8][0], seen[-1][0]
    assert int(last.step) == 11
    for part in ("params", "opt_state", "model_state", "interval"):
        assert bits(getattr(last, part)) == bits(getattr(halted, part)) == bits(getattr(seen[3][0], part))
    assert float(last.params["a"][0]) == pytest.approx(-0.1)


def states(seen):
    return [state for state, _ in seen]


@pytest.mark.parametrize("k", [1, 2])
def test_an_interval_is_the_mean_by_weight_over_the_applied_steps(k):
    seen = run(
        k,
        [
            batch_of(k, offset=(-5.0,), weight=4, a=0, b=0, c=0),
            batch_of(k, offset=(-2.0,), weight=1, a=0, b=0, c=0),
            batch_of(k, offset=(np.inf,)),
            batch_of(k, offset=(7.0,), weight=0),
        ],
    )
    interval = seen[-1][0].interval
    assert int(interval.num_steps) == 2
    assert float(interval.metrics["loss"].compute()) == pytest.approx((4 * -5 + 1 * -2) / 5)
    assert float(interval.metrics["loss"].weight) == 5
    assert float(interval.metrics["largest"].compute()) == -2.0  # not 0, which is larger, nor 7, which was not applied


def test_a_metric_merges_over_microbatches_and_leaves_out_those_without_weight():
    (_, _), (_, metrics), (_, ragged), (_, nan) = run(
        2,
        [
            batch_of(2, offset=(-9.0, -8.0, -7.0, -6.0)),
            batch_of(2, offset=(-9.0, -8.0, -7.0, -6.0), weight=2),
            batch_of(2, offset=(-9.0, -8.0, np.nan, np.nan), weight=2),
        ],
    )
    assert [float(m["largest"].compute()) for m in (metrics, ragged, nan)] == [-6.0, -8.0, -8.0]


@pytest.mark.parametrize("k", [1, 2])
def test_the_key_of_a_microbatch_is_its_number_folded_into_that_of_its_step(k):
    seen = run(k, [batch_of(k)] * 3)
    for step, (_, metrics) in enumerate(seen[1:], start=1):
        step_key = jax.random.fold_in(KEY, step)
        noise = [jax.random.uniform(jax.random.fold_in(step_key, i), (4 // k,)) for i in range(k)]
        np.testing.assert_allclose(metrics["noise"].compute(), np.mean(noise), rtol=1e-6)


def test_model_state_passes_from_microbatch_to_microbatch():
    assert [float(state.model_state["num_calls"]) for state in states(run(2, [batch_of(2)] * 2))] == [0, 2, 4]


def test_nothing_is_compiled_after_the_first_step():
    run(1, [batch_of(1)] * 3)
    assert programs(1)[1]._cache_size() == 1


def test_evaluation_gives_the_loss_beside_the_tasks_metrics():
    params = {name: jnp.ones(2) for name in "abc"}
    batch = {name: x[0] for name, x in batch_of(1, offset=(1.0, 2.0, 3.0, 4.0), weight=2).items()}
    metrics = make_eval_step(Probe())(params, {"num_calls": jnp.zeros(())}, batch)
    assert metrics.keys() == {"loss", "largest", "noise"}
    assert float(metrics["loss"].compute()) == pytest.approx(6 + 1.5)


@pytest.mark.parametrize("jit", [jax.jit, lambda function: function])
@pytest.mark.parametrize("optimizer", [optax.adamw(0.1), contrib.schedule_free_sgd(0.1)])
def test_a_new_state_can_be_donated_and_the_callers_key_stays(jit, optimizer):
    key, batch = jax.random.key(1), batch_of(1)
    state = jit(make_init(Probe(), optimizer))(key, batch)
    donating = jax.jit(lambda state: jax.tree.map(jnp.copy, state), donate_argnums=0)
    donating(state)
    assert state.step.is_deleted()
    assert not key.is_deleted()


def test_drained_counters_and_interval_outlive_the_state():
    init, train_step = programs(1)
    state, _ = train_step(init(KEY, batch_of(1)), batch_of(1, a=np.nan))
    full = state.interval
    empty, kept = compile_ahead(drain, full, state.counters)(full, state.counters)
    state = dataclasses.replace(state, interval=empty)
    jax.jit(lambda state: jax.tree.map(lambda x: x, state), donate_argnums=0)(state)
    assert state.counters.skipped.is_deleted()
    assert (int(kept.skipped), int(kept.bad_leaf)) == (1, 0)
    assert int(full.num_steps) == 0
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(drain(full, kept)[0]))


def test_a_batch_of_another_shape_is_refused_by_name():
    init, _ = programs(1)
    state = init(KEY, batch_of(1))
    compiled = compile_ahead(lambda state, batch: state.step + jnp.int32(batch["mask"].sum()), state, batch_of(1))
    assert int(compiled(state, jax.device_put(batch_of(1)))) == 4
    wrong = batch_of(1) | {"offset": np.zeros((1, 5), np.float32)}
    with pytest.raises(TypeError, match=r"batch\['offset'\].*float32\[1,4\].*float32\[1,5\]"):
        compiled(state, jax.device_put(wrong))


MODEL = Transformer(vocab_size=16, num_layers=2, embed=16, heads=2, max_seq=8, dropout=0.1)
TOKENS = {"tokens": jax.ShapeDtypeStruct((2, 4, 9), jnp.int32), "mask": jax.ShapeDtypeStruct((2, 4, 8), jnp.bool_)}


def traced(optimizer, params_dtype="float32", compute_dtype="float32"):
    """A train step of a language model, traced but never compiled: state before, jaxpr, state and metrics after."""
    task = LanguageModeling(MODEL)
    state = jax.eval_shape(make_init(task, optimizer, params_dtype=params_dtype), KEY, TOKENS)
    train_step = make_train_step(task, optimizer, compute_dtype=compute_dtype)
    jaxpr, out = jax.make_jaxpr(train_step, return_shape=True)(state, TOKENS)
    return state, jaxpr.jaxpr, *out


def matmul_dtypes(jaxpr):
    """The operand dtypes of all matrix products, also those inside loops and branches."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield tuple(str(operand.aval.dtype) for operand in equation.invars)
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from matmul_dtypes(inner)


def dtypes(tree):
    floats = (leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating))
    return {str(dtype) for dtype in floats}


def test_bfloat16_computes_matrix_products_and_keeps_everything_else_in_float32():
    state, jaxpr, after, metrics = traced(optax.adamw(1e-3), compute_dtype="bfloat16")
    products = list(matmul_dtypes(jaxpr))
    assert len(products) > 20
    # The softmax is float32, so in the backward pass its cotangent meets bfloat16.
    assert set(products) <= {("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32")}
    assert dtypes((state, after, metrics)) == {"float32"}
    assert set(matmul_dtypes(traced(optax.adamw(1e-3))[1])) == {("float32", "float32")}
    eval_step = make_eval_step(LanguageModeling(MODEL), compute_dtype="bfloat16")
    batch = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in TOKENS.items()}
    forward = jax.make_jaxpr(eval_step)(state.params, state.model_state, batch).jaxpr
    assert set(matmul_dtypes(forward)) == {("bfloat16", "bfloat16")}


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(optax.adamw(1e-3), id="adamw"),
        pytest.param(optax.lion(1e-3), id="lion"),
        pytest.param(optax.adafactor(1e-3), id="adafactor"),
        pytest.param(contrib.muon(1e-3), id="muon"),
        pytest.param(optax.sgd(1e-3, momentum=0.9), id="sgd"),
        pytest.param(optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-3)), id="clipped lamb"),
        pytest.param(optax.inject_hyperparams(optax.adamw)(1e-3), id="adamw with injected rates"),
    ],
)
def test_parameters_of_16_bits_work_with_every_optimizer_and_keep_every_dtype(optimizer):
    state, _, after, metrics = traced(optimizer, "bfloat16", "bfloat16")
    assert dtypes(state.params) == {"bfloat16"}
    assert [leaf.dtype for leaf in jax.tree.leaves(after)] == [leaf.dtype for leaf in jax.tree.leaves(state)]
    assert dtypes(metrics) == {"float32"}


@pytest.mark.parametrize("engine", ["multisteps", "fused"])
def test_gradients_of_16_bits_are_summed_in_float32(engine):
    batch = {name: x.astype("bfloat16") if x.dtype == np.float32 else x for name, x in batch_of(1).items()}
    batch = {name: np.repeat(x[:, :1], 512, axis=0) for name, x in batch.items()}
    optimizer = optax.sgd(1.0)
    state = make_init(Probe(), optimizer, params_dtype="bfloat16")(KEY, batch)
    train_step = make_train_step(Probe(), optimizer, engine=engine, compute_dtype="bfloat16")
    state, metrics = jax.jit(train_step)(state, batch)
    assert float(state.params["a"][0]) == -1.0
    np.testing.assert_allclose(metrics["grad_norm"].compute(), np.sqrt(6), rtol=1e-6)
    stalled = functools.reduce(jnp.add, [jnp.bfloat16(1)] * 512)
    assert float(stalled) == 256.0


@pytest.mark.parametrize("k", [1, 2])
def test_the_moving_average_follows_its_formula_from_the_initial_parameters_and_moves_with_applied_steps_only(k):
    init = make_init(Probe(), optax.sgd(0.1), ema=True)
    train_step = jax.jit(
        make_train_step(Probe(), optax.sgd(0.1), engine=OPTIMIZERS[k], nonfinite_limit=9, ema_decay=0.9),
        donate_argnums=0,  # which no two leaves may share
    )
    state = jax.jit(init)(KEY, batch_of(k))
    expected = np.asarray(state.params["a"], np.float64)
    steps = [(1.0, 4), (-3.0, 4), (np.nan, 4), (1.0, 0), (0.5, 4)]
    for step, (slope, weight) in enumerate(steps):
        before = bits(state.ema)
        state, _ = train_step(state, batch_of(k, a=slope, weight=weight))
        if step in (2, 3):
            assert bits(state.ema) == before
        else:
            expected = 0.9 * expected + 0.1 * np.asarray(state.params["a"], np.float64)
        np.testing.assert_allclose(state.ema["a"], expected, rtol=1e-6)
    assert np.abs(expected).min() > 1e-3
    assert not np.allclose(state.params["a"], expected, rtol=0.1)


def test_the_moving_average_is_float32_is_what_is_evaluated_and_is_absent_unless_asked_for():
    make = functools.partial(make_init, Probe(), optax.sgd(0.1), params_dtype="bfloat16")
    state = jax.eval_shape(make(ema=True), KEY, batch_of(1))
    assert dtypes(state.params) == {"bfloat16"}
    assert dtypes(state.ema) == {"float32"}
    assert eval_params(state) is state.ema
    without = jax.eval_shape(make(), KEY, batch_of(1))
    assert without.ema is None
    assert eval_params(without) is without.params
    with_float32 = jax.eval_shape(make_init(Probe(), optax.sgd(0.1), ema=True), KEY, batch_of(1))
    after, _ = jax.eval_shape(make_train_step(Probe(), optax.sgd(0.1), ema_decay=0.9), state, batch_of(1))
    assert dtypes(after.ema) == dtypes(with_float32.ema) == {"float32"}


@pytest.mark.parametrize(("engine", "k"), [("multisteps", 1), ("multisteps", 2), ("fused", 2)])
def test_what_is_frozen_for_a_while_keeps_every_bit_and_empty_moments_until_then(engine, k):
    def frozen(params):
        return {"w": 2, "v": 0}

    class TwoWeights:
        def init(self, key, batch):
            return {"w": jnp.array([-0.0, 1e-40, 3.0]), "v": jnp.ones(3)}, {}

        def loss(self, params, model_state, batch, key, train):
            values = jnp.sum((params["w"] + params["v"] - 2.0) ** 2) + 0 * batch["x"]
            return Output(Mean.of(values, batch["mask"]), {}, model_state)

    batch = {"x": np.ones((k, 2), np.float32), "mask": np.ones((k, 2), bool)}
    optimizer = optax.adamw(0.1, weight_decay=0.1)
    state = make_init(TwoWeights(), optimizer)(jax.random.key(0), batch)
    step = jax.jit(make_train_step(TwoWeights(), optimizer, engine=engine, frozen=frozen))
    never = jax.jit(make_train_step(TwoWeights(), optimizer, engine=engine))
    first = np.asarray(state.params["w"]).tobytes()
    assert np.asarray(never(state, batch)[0].params["w"]).tobytes() != first
    norms = []
    for number in (1, 2, 3):
        state, metrics = step(state, batch)
        norms.append(float(metrics["grad_norm"].compute()))
        moments = np.asarray(optax.tree.get(state.opt_state, "mu")["w"])
        assert (np.asarray(state.params["w"]).tobytes() == first) == (number <= 2), number
        assert (not np.any(moments)) == (number <= 2), number
        assert np.any(state.params["v"] != 1.0)
    assert norms[2] > norms[1]  # from then on they count
