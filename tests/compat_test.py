import jax.numpy as jnp
import orbax.checkpoint as ocp

from jaxtrain import compat


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
