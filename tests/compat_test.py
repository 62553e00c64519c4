import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import config_dict

from jaxtrain import compat


def test_what_a_backward_pass_computes_again_is_known_from_what_is_new():
    def loss(x):
        return jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)))(x))

    (body,) = [e for e in jax.make_jaxpr(jax.grad(loss))(1.0).eqns if e.params.get("differentiated")]
    found = {equation.primitive.name: compat.is_recomputed(equation) for equation in body.params["jaxpr"].eqns}
    assert found["sin"]
    assert found["cos"]
    assert not found["mul"]


def test_orbax_names_the_same_suffix_itself():
    assert ocp.utils.TMP_DIR_SUFFIX == compat.ORBAX_TMP_SUFFIX


def test_orbax_writes_an_unfinished_save_beside_its_final_name_with_our_suffix(tmp_path):
    seen = []
    options = ocp.AsyncOptions(post_finalization_callback=lambda: seen.extend(path.name for path in tmp_path.iterdir()))
    with ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(), async_options=options) as checkpointer:
        item = ocp.args.StandardSave({"w": jnp.ones(3)})
        checkpointer.save(tmp_path / "7", args=ocp.args.Composite(default=item))
        checkpointer.wait_until_finished()
    assert seen == [f"7{compat.ORBAX_TMP_SUFFIX}"]
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_a_config_dict_remembers_the_order_in_which_it_was_filled():
    reference = config_dict.FieldReference(3)
    group = config_dict.ConfigDict({"z": {"y": 1, "b": 2}})
    group.a, group.c = 1, reference
    assert compat.items_as_set(group) == [("z", group.z), ("a", 1), ("c", reference)]
    assert [key for key, _ in compat.items_as_set(group.z)] == ["y", "b"]
    assert list(group) == ["a", "c", "z"]  # why `items` will not do


def test_shards_are_put_as_device_put_puts_them():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    array = np.arange(2 * 8 * 3, dtype=np.float32).reshape(2, 8, 3)
    for spec in (jax.P(), jax.P(None, "data"), jax.P(None, "data", None)):
        sharding = jax.sharding.NamedSharding(mesh, spec)
        ours = compat.make_put(array.shape, array.dtype, sharding)(array)
        theirs = jax.device_put(array, sharding)
        np.testing.assert_array_equal(ours, theirs)
        for name in ("shape", "dtype", "sharding", "committed", "weak_type"):
            assert getattr(ours, name) == getattr(theirs, name)
        for mine, other in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
            assert mine.device == other.device
            np.testing.assert_array_equal(mine.data, other.data)
