import contextlib
import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxtrain
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.errors import CheckpointError, WorkdirError
from jaxtrain.params import load, load_params
from jaxtrain.workdir import Workdir
from tests.checkpoint.states import assert_bit_equal, make_state
from tests.text_run import damage, snapshot


def save(workdir, state, step=3):
    with contextlib.closing(Checkpoints(workdir / "checkpoints", keep_last=1)) as checkpoints:
        checkpoints.save(step, state, {})
    return workdir


def on_the_host(tree):
    return jax.tree.map(np.asarray, tree)


@pytest.fixture(scope="module")
def state():
    params = {
        "a": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3, jnp.bfloat16)},
        "none": jnp.ones((0, 2)),
    }
    return dataclasses.replace(make_state(), params=params, model_state={"stats": {"mean": jnp.arange(3)}})


@pytest.fixture(scope="module")
def workdir(state, tmp_path_factory):
    return save(tmp_path_factory.mktemp("saved"), state)


def test_parameters_come_back_bit_for_bit_as_arrays_of_the_host(workdir, state):
    params = load_params(workdir)
    assert_bit_equal(params, on_the_host(state.params))
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(params))
    loaded = load(workdir, 3)
    assert (loaded.step, loaded.source) == (3, "params")
    assert_bit_equal(loaded.model_state, on_the_host(state.model_state))


def test_it_is_a_public_name():
    assert jaxtrain.load_params is load_params


def test_an_average_is_what_is_loaded_where_there_is_one(state, tmp_path):
    ema = jax.tree.map(lambda x: (x + 1).astype(jnp.float32), state.params)
    loaded = load(save(tmp_path, dataclasses.replace(state, ema=ema)))
    assert loaded.source == "ema"
    assert_bit_equal(loaded.params, on_the_host(ema))


def test_leaves_are_placed_as_a_state_says(workdir, state):
    mesh = jax.make_mesh((2,), ("fsdp",), devices=jax.devices()[:2])

    def describe(leaf):
        axes = PartitionSpec("fsdp") if leaf.shape[:1] == (2,) else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, axes))

    params, model_state = jax.tree.map(describe, (state.params, state.model_state))
    loaded = load(workdir, "latest", SimpleNamespace(params=params, model_state=model_state, ema=None))
    assert loaded.params["a"]["kernel"].sharding.shard_shape((2, 3)) == (1, 3)
    assert_bit_equal(on_the_host(loaded.params), on_the_host(state.params))


def test_a_state_with_other_leaves_is_refused_leaf_by_leaf(workdir, state):
    params = {**state.params, "a": {"kernel": jnp.zeros((3, 3)), "bias": jnp.ones(3)}}
    with pytest.raises(CheckpointError) as raised:
        load(workdir, "latest", SimpleNamespace(params=params, model_state=state.model_state, ema=None))
    assert "params/a/kernel: saved float32[2, 3], wanted float32[3, 3]" in str(raised.value)
    assert "params/a/bias: saved bfloat16[3], wanted float32[3]" in str(raised.value)


def test_a_finished_run_is_loaded_by_its_workdir_and_only_read(text_run):
    before = snapshot(text_run)
    latest, earlier = load_params(text_run), load_params(str(text_run), step=2)
    assert latest["embedding"]["embedding"].shape == (256, 16)
    assert not np.array_equal(latest["embedding"]["embedding"], earlier["embedding"]["embedding"])
    assert snapshot(text_run) == before


def test_a_run_is_loaded_while_another_process_has_its_lock(text_run, tmp_path):
    shutil.copytree(text_run, tmp_path / "run")
    running = Workdir(tmp_path / "run")
    running.lock()
    try:
        load_params(tmp_path / "run")
    finally:
        running.release()


def test_damage_and_a_place_without_a_run_are_refused(text_run, tmp_path):
    shutil.copytree(text_run, tmp_path / "run")
    damage(tmp_path / "run", 4)
    with pytest.raises(CheckpointError, match="4 is damaged"):
        load_params(tmp_path / "run", 4)
    with pytest.raises(WorkdirError, match="no run at"):
        load_params(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="No checkpoint"):
        load_params(tmp_path / "empty")


def test_best_is_the_saved_step_with_the_best_number_of_the_runs_own_metric(workdir, tmp_path):
    workdir = shutil.copytree(workdir, tmp_path / "run")
    with pytest.raises(CheckpointError, match="the run has no metric to tell"):
        load(workdir, "best")
    run = Workdir(workdir, create=False)
    (saved,) = (int(path.name) for path in run.checkpoints_dir.iterdir() if path.name.isdecimal())
    run.write_config({"checkpoint": {"best_metric": "validation/loss", "best_mode": "min"}})
    lines = [(saved, 2.0), (saved + 1, 1.0)]  # the second is no checkpoint any more
    run.metrics_path.write_text(
        "".join(json.dumps({"step": step, "split": "validation", "loss": loss}) + "\n" for step, loss in lines)
    )
    assert load(workdir, "best").step == saved
