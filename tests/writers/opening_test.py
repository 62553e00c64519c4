import time

import pytest

from jaxtrain.config import Config, schema
from jaxtrain.pace import Pace
from jaxtrain.workdir import Workdir
from jaxtrain.writers.console import Console
from jaxtrain.writers.notebook import Notebook
from jaxtrain.writers.opening import open_writers


@pytest.mark.parametrize("tensorboard", [True, False])
def test_the_console_is_always_there_and_tensorboard_where_it_is_wanted(tmp_path, tensorboard):
    workdir = Workdir(tmp_path / "run")
    writers = open_writers(Config(log=schema.Log(tensorboard=tensorboard)), workdir, Pace(10, None))
    assert isinstance(writers[0], Console)
    assert len(writers) == 1 + tensorboard
    for writer in writers:
        writer.write_scalars(1, "train", {"loss": 1.0}, time.time())
        writer.close()
    assert any(path.stat().st_size > 60 for path in workdir.tensorboard_dir.iterdir()) == tensorboard


def test_in_a_notebook_its_display_is_there_too(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtrain.writers.opening.is_notebook", lambda: True)
    workdir = Workdir(tmp_path / "run")
    console, notebook = open_writers(Config(log=schema.Log(tensorboard=False)), workdir, Pace(10, None))
    assert isinstance(notebook, Notebook)
    for writer in (console, notebook):
        writer.close()
