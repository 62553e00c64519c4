import math
import sys
import time

import numpy as np
import pytest

from jaxtrain import redact
from jaxtrain.writers.mlflow import MLflow


def test_both_launches_write_to_one_run_that_reads_back(tmp_path):
    redact.add("hunter2-hunter2")
    config = {"seed": 3, "task": {"type": "a:b"}, "evals": {}}
    for step in (4, 8):
        writer = MLflow(tmp_path, "run7", "tiny", config, experiment="mine")
        writer.write_scalars(step, "train", {"loss": step / 4, "top@5": math.nan}, time.time())
        writer.write_text(step, "sample", "it is hunter2-hunter2")
        writer.write_image(step, "image", np.full((2, 3, 1), 9, np.uint8))
        writer.close()
    import mlflow

    client = mlflow.MlflowClient((tmp_path / "trackers" / "mlflow").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (run.info.run_name, run.info.status) == ("tiny", "FINISHED")
    assert run.data.params == {"seed": "3", "task.type": "a:b", "evals": "{}"}
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(4, 1.0), (8, 2.0)]
    assert math.isnan(client.get_metric_history(run.info.run_id, "train/top_5")[0].value)
    (text,) = tmp_path.rglob("sample/4.txt")
    assert text.read_text() == "it is <redacted>"
    (image,) = tmp_path.rglob("image/8.png")
    assert image.read_bytes().startswith(b"\x89PNG")


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxtrain\[trackers\]'"):
        MLflow(tmp_path, "run7", "tiny", {})
