import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

import jaxtrain.export
from jaxtrain import cli
from jaxtrain.checkpoint import leaves
from jaxtrain.params import load_params
from tests.text_run import damage


@pytest.mark.parametrize(("flags", "step"), [((), 6), (("--step=2",), 2)])
def test_a_step_is_exported(text_run, tmp_path, capsys, flags, step):
    assert cli.main(["export", f"--workdir={text_run}", f"--out={tmp_path / 'out'}", *flags]) == 0
    assert f"step {step} of {text_run} is in {tmp_path / 'out'}" in capsys.readouterr().out
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for name, array in leaves.named(load_params(text_run, step)).items():
        np.testing.assert_array_equal(tensors[name], array)


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--workdir=RUN"], 2, "Write --out=DIR"),
        (["--workdir=RUN", "--out=OUT", "--config.seed=1"], 2, "an export has the config of its run"),
        (["--workdir=RUN", "--out=OUT", "--stpe=1"], 2, "--step"),
        (["--out=OUT"], 2, "a config is needed"),
        (["--workdir=RUN", "--out=OUT", "--step=6"], 2, "checkpoints/6 is damaged"),
        (["--workdir=RUN", "--out=RUN"], 2, "exists. Nothing was written"),
    ],
)
def test_what_cannot_be_exported_is_refused(text_run, tmp_path, capsys, flags, code, told):
    shutil.copytree(text_run, tmp_path / "run")
    damage(tmp_path / "run", 6)
    places = {"RUN": str(tmp_path / "run"), "OUT": str(tmp_path / "out")}
    for word, place in places.items():
        flags = [flag.replace(word, place) for flag in flags]
    assert cli.main(["export", *flags]) == code
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_export_that_differs_says_no(text_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jaxtrain.export, "load_file", lambda path: {})
    assert cli.main(["export", f"--workdir={text_run}", f"--out={tmp_path / 'out'}"]) == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "does not read back as it was written" in captured.err
    assert "Traceback" not in captured.err


def test_help_says_what_is_written(capsys):
    assert cli.main(["export", "--help"]) == 0
    assert "model.safetensors" in capsys.readouterr().out
