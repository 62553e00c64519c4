import contextlib
import dataclasses
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxtrain.export
from jaxtrain.checkpoint import Checkpoints, leaves
from jaxtrain.errors import StorageError, WorkdirError
from jaxtrain.export import NotEqualError, export
from jaxtrain.params import load_params
from tests.checkpoint.states import make_state
from tests.text_run import snapshot


def test_a_run_becomes_tensors_by_path_and_its_config_and_is_only_read(text_run, tmp_path):
    before = snapshot(text_run)
    assert export(text_run, tmp_path / "new" / "out", step=4) == 4
    assert snapshot(text_run) == before
    out = tmp_path / "new" / "out"
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    tensors, expected = load_file(out / "model.safetensors"), leaves.named(load_params(text_run, 4))
    assert "layers/attention/query/kernel" in tensors
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert (tensors[name].dtype, tensors[name].tobytes()) == (array.dtype, array.tobytes())
    assert json.loads((out / "config.json").read_text()) == json.loads((text_run / "config.json").read_text())


def test_dtypes_scalars_empty_arrays_and_other_state_are_kept(tmp_path):
    params = {"a": {"half": jnp.ones(3, jnp.bfloat16), "scalar": jnp.float32(2)}, "none": jnp.ones((0, 2))}
    state = dataclasses.replace(make_state(), params=params, model_state={"stats": {"mean": jnp.arange(3)}})
    with contextlib.closing(Checkpoints(tmp_path / "run" / "checkpoints", keep_last=1)) as checkpoints:
        checkpoints.save(1, state, {})
    export(tmp_path / "run", tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: (str(x.dtype), x.shape) for name, x in tensors.items()} == {
        "a/half": ("bfloat16", (3,)),
        "a/scalar": ("float32", ()),
        "none": ("float32", (0, 2)),
        "model_state/stats/mean": ("int32", (3,)),
    }
    assert tensors["a/scalar"] == 2


def test_a_directory_that_exists_is_left_alone(text_run, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(WorkdirError, match=r"out exists\. Nothing was written"):
        export(text_run, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def flip_a_bit(arrays, path, metadata):
    name = max(arrays, key=lambda name: arrays[name].size)
    other = np.array(arrays[name])
    other.view(np.uint8).reshape(-1)[0] ^= 1
    save_file({**arrays, name: other}, path, metadata)


def leave_one_out(arrays, path, metadata):
    save_file(dict(list(arrays.items())[1:]), path, metadata)


@pytest.mark.parametrize("save", [flip_a_bit, leave_one_out])
def test_what_reads_back_differently_is_no_export(text_run, tmp_path, monkeypatch, save):
    monkeypatch.setattr(jaxtrain.export, "save_file", save)
    with pytest.raises(NotEqualError, match="does not read back as it was written") as raised:
        export(text_run, tmp_path / "out")
    assert raised.value.exit_code == 5
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_leaves_nothing(text_run, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jaxtrain.export, "save_file", fail)
    with pytest.raises(StorageError, match="No space left on device"):
        export(text_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(tmp_path)
    tmp_path.write_text("a file")
    with pytest.raises(StorageError, match="could not be written"):
        export(text_run, tmp_path / "out")
