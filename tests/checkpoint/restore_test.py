import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.checkpoint import Checkpoints
from jaxtrain.checkpoint.leaves import named
from jaxtrain.checkpoint.restore import read_leaves
from jaxtrain.errors import CheckpointError
from tests.checkpoint import states


def _mesh(*shape: int) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.asarray(jax.devices()[: int(np.prod(shape))]).reshape(shape), ("data", "fsdp"))


def _sharding(mesh: jax.sharding.Mesh):
    """Shard the first dim over fsdp where it divides, as an fsdp run would; replicate the rest."""

    def of(leaf):
        divisible = leaf.ndim and leaf.shape[0] and leaf.shape[0] % mesh.shape["fsdp"] == 0
        return NamedSharding(mesh, P("fsdp") if divisible else P())

    return of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints that hold the state of step 3, written from one device."""
    checkpoints = Checkpoints(tmp_path_factory.mktemp("saved"), keep_last=1)
    checkpoints.save(3, states.make_state(), {})
    checkpoints.wait()
    yield checkpoints
    checkpoints.close()


def test_a_round_trip_keeps_every_bit_dtype_and_container(saved):
    state = states.make_state()
    restored = saved.restore(3, states.abstract(state))
    states.assert_bit_equal(restored, state)
    assert type(restored.opt_state[1][0]) is type(state.opt_state[1][0])
    assert restored.ema is None
    assert restored.model_state == {}
    np.testing.assert_array_equal(jax.random.normal(restored.key, 3), jax.random.normal(state.key, 3))


def test_arrays_serve_as_their_own_description(saved):
    state = states.make_state()
    states.assert_bit_equal(saved.restore(3, states.make_state(seed=1)), state)


def test_leaves_without_a_sharding_go_to_the_first_device(saved):
    state = states.make_state()
    restored = saved.restore(3, states.abstract(state, lambda leaf: None))
    states.assert_bit_equal(restored, state)
    assert {device for leaf in jax.tree.leaves(restored) for device in leaf.devices()} == {jax.devices()[0]}


@pytest.mark.parametrize(("before", "after"), [((1, 8), (1, 1)), ((2, 4), (8, 1)), ((1, 1), (1, 8)), ((4, 2), (1, 4))])
def test_a_state_moves_to_another_mesh_bit_for_bit(tmp_path, before, after):
    state = states.make_state()
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save(3, jax.tree.map(lambda x: jax.device_put(x, _sharding(_mesh(*before))(x)), state), {})
    checkpoints.wait()
    wanted = states.abstract(state, _sharding(_mesh(*after)))
    restored = checkpoints.restore(3, wanted)
    checkpoints.close()
    states.assert_bit_equal(restored, state)
    for leaf, want in zip(jax.tree.leaves(restored), jax.tree.leaves(wanted), strict=True):
        assert leaf.sharding.is_equivalent_to(want.sharding, leaf.ndim)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("step", jnp.zeros((), jnp.float32), "step: saved int32[], wanted float32[]"),
        ("key", jax.random.key(0, impl="rbg"), "key: saved key<fry>[], wanted key<rbg>[]"),
        ("ema", jnp.zeros(3), "ema: saved nothing, wanted float32[3]"),
        ("keys", (), "keys/0: saved key<fry>[8], wanted nothing"),
        ("flags", [jnp.zeros((3, 1), bool)], "flags/0: saved bool[3], wanted bool[3, 1]"),
    ],
)
def test_another_dtype_shape_or_structure_is_refused_leaf_by_leaf(saved, field, value, told):
    state = dataclasses.replace(states.make_state(), **{field: value})
    with pytest.raises(CheckpointError) as caught:
        saved.restore(3, states.abstract(state))
    assert told in str(caught.value)


def test_single_leaves_are_read_by_name_with_another_dtype_where_asked(saved):
    leaves = named(states.make_state())
    wanted = {name: leaves[name] for name in ("params/dense.0/kernel", "flags/1")}
    wanted["params/dense/0/kernel"] = jax.ShapeDtypeStruct((8, 16), jnp.float32)  # saved as bfloat16
    found = read_leaves(saved._directory / "3", wanted)
    assert found.keys() == wanted.keys()
    for name, leaf in found.items():
        assert states.bits(leaf) == states.bits(leaves[name].astype(wanted[name].dtype))


def test_a_missing_or_damaged_step_is_refused_with_its_path(saved):
    with pytest.raises(CheckpointError, match=r"/4 cannot be restored: manifest\.json is missing"):
        saved.restore(4, states.abstract(states.make_state()))
