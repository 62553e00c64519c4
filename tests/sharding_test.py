"""Where arrays live changes their place and never a number."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

from jaxtrain import sharding
from jaxtrain.compiling import compile_ahead
from jaxtrain.config import Mesh, Sharding
from jaxtrain.errors import ConfigError
from jaxtrain.models.transformer import Transformer
from jaxtrain.partitioning import state_shardings
from jaxtrain.sharding import BatchPlacer, make_mesh, mesh_shape, table, with_shardings
from jaxtrain.step import make_init, make_train_step
from jaxtrain.tasks.language_modeling import LanguageModeling

MESHES = {
    "one device": (Mesh(data=1), 1),
    "data=8": (Mesh(data=8), 8),
    "fsdp=8": (Mesh(data=1, fsdp=8), 8),
    "data=2,fsdp=4": (Mesh(data=2, fsdp=4), 8),
}


def mesh_of(name):
    config, num_devices = MESHES[name]
    return make_mesh(config, jax.devices()[:num_devices])


@pytest.mark.parametrize(
    ("config", "num_devices", "expected"),
    [
        (Mesh(), 8, {"data": 8, "fsdp": 1}),
        (Mesh(fsdp=-1, data=2), 8, {"data": 2, "fsdp": 4}),
        (Mesh(data=2, fsdp=4), 8, {"data": 2, "fsdp": 4}),
        (Mesh(), 1, {"data": 1, "fsdp": 1}),
        (Mesh(fsdp=3), 6, {"data": 2, "fsdp": 3}),
        (Mesh(tensor=4, sequence=2), 16, {"data": 2, "sequence": 2, "tensor": 4}),
        (Mesh(data=1, tensor=-1, sequence=2), 8, {"sequence": 2, "tensor": 4}),
    ],
)
def test_one_axis_takes_what_is_left(config, num_devices, expected):
    assert mesh_shape(config, num_devices) == {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1, **expected}
    assert tuple(mesh_shape(config, num_devices)) == sharding.AXES


@pytest.mark.parametrize(
    ("config", "key", "fix"),
    [
        (Mesh(data=3), "mesh.data", "data=8"),
        (Mesh(data=4), "mesh.data", "data=8"),  # jax.make_mesh would idle four devices
        (Mesh(fsdp=3), "mesh.fsdp", "fsdp=8"),
        (Mesh(data=2, fsdp=8), "mesh.data", "data=1"),
        (Mesh(data=-1, fsdp=-1), "mesh.fsdp", "size"),
        (Mesh(data=-1, tensor=-1), "mesh.tensor", "size"),
        (Mesh(tensor=3), "mesh.tensor", "--config.mesh.tensor=2"),
        (Mesh(data=1, sequence=16), "mesh.sequence", "--config.mesh.sequence=8"),
    ],
)
def test_axes_that_do_not_multiply_to_the_devices_are_refused_with_sizes_that_do(config, key, fix):
    with pytest.raises(ConfigError) as raised:
        mesh_shape(config, 8)
    assert f"--config.{key}" in str(raised.value)
    assert fix in str(raised.value)


@pytest.mark.parametrize(("num_devices", "present"), [(1, r"there is 1 device\."), (4, r"there are 4 devices\.")])
def test_the_devices_there_are_are_counted(num_devices, present):
    with pytest.raises(ConfigError, match=present):
        mesh_shape(Mesh(data=3), num_devices)


def test_a_mesh_uses_every_device_and_leaves_shardings_to_the_compiler():
    mesh = mesh_of("data=2,fsdp=4")
    assert mesh.axis_names == ("data", "fsdp", "sequence", "tensor")
    assert mesh.axis_types == (AxisType.Auto,) * 4
    assert set(mesh.devices.flat) == set(jax.devices())


@pytest.mark.parametrize("k", [None, 1, 2])
@pytest.mark.parametrize("name", MESHES)
def test_a_placed_batch_holds_its_rows_in_order_on_any_mesh(name, k):
    batch = {"tokens": np.arange(16 * 3).reshape(16, 3), "mask": np.arange(16) % 3 == 0}
    place = BatchPlacer(mesh_of(name), 16, k)
    np.testing.assert_array_equal(place.rows, np.arange(16))
    for field, placed in place(batch).items():
        expected = batch[field] if k is None else batch[field].reshape(k, 16 // k, *batch[field].shape[1:])
        np.testing.assert_array_equal(placed, expected)
        shards = len(mesh_of(name).devices.flat)
        assert placed.sharding.shard_shape(placed.shape)[placed.ndim - expected.ndim + (k is not None)] == (
            16 // (k or 1) // shards
        )
    abstract = place.abstract({field: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for field, x in batch.items()})
    assert {field: x.shape for field, x in abstract.items()} == {n: x.shape for n, x in place(batch).items()}


BATCH, SEQ, VOCAB, STEPS = 16, 8, 32, 20
TASK = LanguageModeling(
    Transformer(vocab_size=VOCAB, num_layers=1, embed=16, heads=2, max_seq=SEQ, mlp=32, dropout=0.1, scan_layers=False)
)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


@functools.cache
def batches():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (STEPS, BATCH, SEQ + 1)).astype(np.int32)
    mask = np.arange(SEQ) < rng.integers(0, SEQ + 1, (STEPS, BATCH, 1))
    return [{"tokens": t, "mask": m} for t, m in zip(tokens, mask, strict=True)]


@functools.cache
def initial_state():
    batch = {name: x.reshape(2, -1, *x.shape[1:]) for name, x in batches()[0].items()}
    return jax.jit(make_init(TASK, OPTIMIZER, ema=True))(jax.random.key(0), batch)


@functools.cache
def compiled(name):
    """The train step on a mesh, and the state's shapes and shardings there."""
    mesh = mesh_of(name)
    abstract = jax.eval_shape(lambda state: state, initial_state())
    abstract = with_shardings(abstract, state_shardings(mesh, abstract, OPTIMIZER, Sharding(min_size=0)))
    example = {n: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for n, x in batches()[0].items()}
    program = compile_ahead(
        make_train_step(TASK, OPTIMIZER, ema_decay=0.9),
        abstract,
        BatchPlacer(mesh, BATCH, 2).abstract(example),
        donate_argnums=(0,),
        out_shardings=(jax.tree.map(lambda x: x.sharding, abstract), sharding.replicated(mesh)),
    )
    return program, abstract


@functools.cache
def trained(name):
    program, abstract = compiled(name)
    place = BatchPlacer(mesh_of(name), BATCH, 2)
    state = jax.tree.map(lambda x, to: jax.device_put(jnp.copy(x), to.sharding), initial_state(), abstract)
    losses = []
    for batch in batches():
        state, metrics = program(state, place(batch))
        losses.append(float(metrics["loss"].compute()))
    return losses, state


@pytest.mark.parametrize("name", [name for name in MESHES if name != "one device"])
def test_twenty_steps_give_the_same_losses_and_parameters_on_every_mesh(name):
    (losses, state), (expected_losses, expected) = trained(name), trained("one device")
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert len(set(losses)) == STEPS
    for (path, a), b in zip(jax.tree.leaves_with_path(state.params), jax.tree.leaves(expected.params), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b), jax.tree_util.keystr(path)


@pytest.mark.parametrize(("name", "shards"), [("data=8", 1), ("fsdp=8", 8), ("data=2,fsdp=4", 4)])
def test_parameters_and_moments_take_their_share_of_each_device(name, shards):
    _, state = trained(name)
    rows = table((state.params, state.opt_state, state.ema))
    assert len(rows) == 4 * len(jax.tree.leaves(state.params)) + 1  # two moments, the average, a count
    for path, shape, _, _, num_bytes in rows:
        divisible = any(size % shards == 0 for size in shape)
        assert num_bytes == math.prod(shape) * 4 // (shards if divisible else 1), path
    whole = sum(math.prod(shape) * 4 for _, shape, *_ in rows if shape)
    assert sum(num_bytes for _, shape, *_, num_bytes in rows if shape) == whole // shards


@pytest.mark.parametrize("name", ["one device", "data=2,fsdp=4"])
def test_the_step_gives_back_all_the_memory_of_the_state(name):
    program, abstract = compiled(name)
    held = sum(num_bytes for *_, num_bytes in table(jax.tree.map(as_raw, abstract)))
    assert program.memory_analysis().alias_size_in_bytes == held


def as_raw(leaf):
    """A key as the two words that it is made of."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.ShapeDtypeStruct((*leaf.shape, 2), jnp.uint32, sharding=leaf.sharding)
    return leaf
