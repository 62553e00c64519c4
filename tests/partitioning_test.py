"""Who decides how a parameter is split, and that it is split so."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from jaxtrain import default_config
from jaxtrain.assembly import assemble
from jaxtrain.check import checked
from jaxtrain.config import Mesh, Sharding, ShardingRule
from jaxtrain.data.arrays import Arrays
from jaxtrain.errors import ConfigError
from jaxtrain.partitioning import largest_dim, place_params, state_shardings
from jaxtrain.sharding import make_mesh, table
from jaxtrain.tasks.classification import Classification

FSDP = Mesh(data=1, fsdp=8)
BOTH = Mesh(data=2, fsdp=4)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8, 16), ((), ("fsdp",))),
        ((16, 16), (("fsdp",), ())),
        ((8, 17), (("fsdp",), ())),
        ((3, 24, 8), ((), ("fsdp",), ())),
        ((7, 9), ((), ())),
        ((), ()),
        ((0, 8), ((), ())),
        ((8,), ((),)),  # fewer than min_size elements
    ],
)
def test_the_largest_dim_that_divides_is_split(shape, axes):
    assert largest_dim(make_mesh(FSDP), shape, min_size=16) == axes
    assert not any(largest_dim(make_mesh(Mesh(data=8)), shape, min_size=16))


PARAMS = {
    "embed": {"table": jax.ShapeDtypeStruct((64, 16), jnp.float32)},
    "dense": {
        "kernel": jax.ShapeDtypeStruct((16, 24), jnp.float32),
        "bias": jax.ShapeDtypeStruct((24,), jnp.float32),
    },
}


def placed(rules, mesh=BOTH, **options):
    rules = {name: ShardingRule(match=match, spec=spec) for name, (match, spec) in rules.items()}
    found = place_params(make_mesh(mesh), PARAMS, Sharding(rules=rules, min_size=0, **options), {})
    return {path: (placement.axes, placement.by) for path, placement in found.items()}


def test_the_first_rule_that_matches_decides_and_the_rest_is_automatic():
    found = placed({"vectors": ("bias$", ""), "dense": ("^dense/", "-, data+fsdp")})
    assert found["dense/bias"] == (((),), "rule vectors")
    assert found["dense/kernel"] == (((), ("data", "fsdp")), "rule dense")
    assert found["embed/table"] == ((("fsdp",), ()), "")


@pytest.mark.parametrize(
    ("rule", "key", "message"),
    [
        (("attention", "fsdp"), "rules.one.match", "no parameter has it in its path; there are .*dense/kernel"),
        (("kernel", "-, model"), "rules.one.spec", "'model' is no axis of the mesh.* Axes are data, fsdp"),
        (("kernel", "fsdp, fsdp"), "rules.one.spec", "names 'fsdp' twice"),
        (("bias", "-, fsdp"), "rules.one.spec", r"names 2 dims, but dense/bias has 1: \[24\]"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule, key, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        placed({"one": rule})
    assert refusal.value.problems[0].key == f"sharding.{key}"


def test_a_rule_behind_another_that_takes_all_its_parameters_still_counts_as_matching():
    assert placed({"all": (".", ""), "bias": ("bias", "fsdp")})["dense/bias"] == (((),), "rule all")


def test_a_dim_that_its_axes_do_not_divide_is_refused_with_its_size():
    with pytest.raises(ConfigError, match=r"dim 1 of dense/kernel is 24, not divisible by the 16"):
        place_params(
            FakeMesh(data=4, fsdp=4), PARAMS, Sharding(rules={"one": ShardingRule("kernel", "-, data+fsdp")}), {}
        )


class FakeMesh:
    """A mesh larger than the devices of the tests."""

    def __init__(self, **shape):
        self.shape = shape


def test_too_many_parameters_repeated_under_fsdp_are_refused_unless_a_rule_asks_for_it():
    with pytest.raises(ConfigError, match=r"24 elements .* each of the 16 devices of fsdp, as in dense/bias"):
        place_params(FakeMesh(data=1, fsdp=16), PARAMS, Sharding(min_size=0, max_unsharded=23), {})
    place_params(FakeMesh(data=1, fsdp=16), PARAMS, Sharding(min_size=0, max_unsharded=24), {})
    place_params(FakeMesh(data=16, fsdp=1), PARAMS, Sharding(min_size=0, max_unsharded=0), {})
    told = {"whole": ShardingRule("bias", "")}
    place_params(FakeMesh(data=1, fsdp=16), PARAMS, Sharding(rules=told, min_size=0, max_unsharded=0), {})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    params: Any
    opt_state: Any


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(optax.masked(optax.trace(0.9), {"layer": True, "bias": False}), id="without some parameters"),
        pytest.param(optax.sm3(0.1), id="several arrays for one parameter"),
        pytest.param(optax.inject_hyperparams(optax.adam)(0.1), id="with injected rates"),
    ],
)
def test_optimizer_state_of_any_structure_is_split_where_it_can_be(optimizer):
    params = {"layer": {"kernel": jnp.zeros((8, 32))}, "bias": jnp.zeros(16)}
    abstract = jax.eval_shape(lambda: State(params=params, opt_state=optimizer.init(params)))
    shardings = state_shardings(make_mesh(FSDP), abstract, optimizer, Sharding(min_size=0))
    assert jax.tree.structure(shardings.opt_state) == jax.tree.structure(abstract.opt_state)
    for leaf, place in zip(jax.tree.leaves(abstract.opt_state), jax.tree.leaves(shardings.opt_state), strict=True):
        assert ("fsdp" in place.spec) == any(size % 8 == 0 for size in leaf.shape)


def test_zero1_splits_the_moments_over_data_and_leaves_the_parameters():
    params = {"kernel": jnp.zeros((8, 32)), "bias": jnp.zeros(2), "odd": jnp.zeros(3)}
    abstract = jax.eval_shape(lambda: State(params=params, opt_state=optax.adam(0.1).init(params)))
    shardings = state_shardings(make_mesh(BOTH), abstract, optax.adam(0.1), Sharding(min_size=0, zero1=True))
    assert shardings.params["kernel"].spec == PartitionSpec(None, "fsdp")
    assert shardings.params["bias"].spec == PartitionSpec()
    mu = shardings.opt_state[0].mu
    assert mu["kernel"].spec == PartitionSpec("data", "fsdp")
    assert mu["bias"].spec == PartitionSpec("data")
    assert mu["odd"].spec == PartitionSpec()


class Logical(nn.Module):
    """A linen model whose parameters name their dims."""

    @nn.compact
    def __call__(self, x):
        kernel_init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        x = nn.Dense(32, kernel_init=kernel_init)(x)
        return nn.Dense(4, kernel_init=nn.with_partitioning(nn.initializers.lecun_normal(), ("fsdp", None)))(x)


class Annotated(nnx.Module):
    """An nnx model, one variable of which names mesh axes, another logical ones with rules of its own."""

    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        self.up = nnx.Linear(16, 32, rngs=rngs, kernel_init=nnx.with_partitioning(init, (None, ("data", "fsdp"))))
        down = nnx.with_partitioning(init, ("mlp", "out"), sharding_rules=(("mlp", "fsdp"),))
        self.down = nnx.Linear(32, 4, rngs=rngs, kernel_init=down)

    def __call__(self, x):
        return self.down(self.up(x))


class Bare(nn.Module):
    """A model that says nothing."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(32)(x)
        return nn.Dense(4)(x)


def experiment_of(model, **options):
    config = default_config()
    config.name = "sharded"
    config.duration = "2 steps"
    config.batch_size = 8
    config.task.type = Classification(model)
    rng = np.random.default_rng(0)
    config.data.type = Arrays(
        arrays={"image": rng.normal(size=(64, 16)).astype(np.float32), "label": np.arange(64) % 4}
    )
    config.optimizer.type = "optax:sgd"
    config.optimizer.momentum = 0.9
    config.mesh.data, config.mesh.fsdp = 2, 4
    config.sharding.update({"min_size": 32, **options})
    return assemble(checked(config))


CASES = {
    "linen with logical axes": (
        Logical(),
        {"logical_axes": {"embed": "fsdp", "mlp": "data"}},
        # The first bias is split automatically, the last has fewer than min_size elements.
        {"Dense_0/kernel": 8, "Dense_0/bias": 4, "Dense_1/kernel": 4, "Dense_1/bias": 1},
    ),
    "linen with logical axes that mean nothing here": (
        Logical(),
        {},
        # Automatic FSDP splits what the names leave.
        {"Dense_0/kernel": 4, "Dense_0/bias": 4, "Dense_1/kernel": 4, "Dense_1/bias": 1},
    ),
    "nnx": (Annotated, {}, {"up/kernel": 8, "up/bias": 4, "down/kernel": 4, "down/bias": 1}),
    "bare": (Bare(), {}, {"Dense_0/kernel": 4, "Dense_0/bias": 4, "Dense_1/kernel": 4, "Dense_1/bias": 1}),
    "bare with a rule": (
        Bare(),
        {"rules": {"kernels": {"match": "kernel", "spec": "data"}}},
        {"Dense_0/kernel": 2, "Dense_0/bias": 4, "Dense_1/kernel": 2, "Dense_1/bias": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_split_as_it_or_the_config_says_and_so_are_its_moments(case):
    model, options, shards = CASES[case]
    experiment = experiment_of(model, **options)
    state = experiment.init_state()
    found = {path: (math.prod(shape) * 4, num_bytes) for path, shape, _, _, num_bytes in table(state.params)}
    assert found.keys() == shards.keys()
    assert found == {path: (total, total // shards[path]) for path, (total, _) in found.items()}
    moments = [row for row in table(state.opt_state) if row[1]]
    assert [num_bytes for *_, num_bytes in moments] == [num_bytes for _, num_bytes in found.values()]
    assert not any(isinstance(leaf, nn.Partitioned) for leaf in jax.tree.leaves(state, is_leaf=is_box))


def is_box(node):
    return isinstance(node, nn.Partitioned)


def test_a_step_keeps_the_split_and_gives_the_loss_of_one_device():
    def step(experiment):
        batch = experiment.place(next(experiment.loader(0)).arrays)
        return experiment.compile_train_step()(experiment.init_state(), batch)

    annotated = experiment_of(Logical(), logical_axes={"embed": "fsdp", "mlp": "data"}, zero1=True)
    state, metrics = step(annotated)
    assert table(state) == table(annotated.abstract_state)
    _, expected = step(experiment_of(Logical(), min_size=10**6, logical_axes={"fsdp": ""}))
    np.testing.assert_allclose(metrics["loss"].compute(), expected["loss"].compute(), rtol=1e-6)
    assert annotated.sharded_by["Dense_0/kernel"] == "model"
