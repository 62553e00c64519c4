"""MLflow. Credentials of a server are read from the environment (MLFLOW_TRACKING_TOKEN) by the library itself."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxtrain.config import flatten
from jaxtrain.redact import redact

_TAG = "jaxtrain.run_id"
_MAX_PARAM = 500  # characters, which every server takes


class MLflow:
    """One run of an experiment, which every launch of a workdir goes on with.

    tracking_uri: "" for `trackers/mlflow` of the workdir.   experiment: its name; it is made if it is new.
    Raises ImportError if the package is missing, and MlflowException if the server refuses.
    """

    def __init__(
        self,
        workdir: Path,
        run_id: str,
        name: str,
        config: Mapping[str, Any],
        tracking_uri: str = "",
        experiment: str = "jaxtrain",
    ):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would report its use to its makers
        # A store in files is what needs no database; MLflow wants to be told that it is meant.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            import mlflow
        except ImportError as error:
            raise ImportError(f"{error}; pip install 'jaxtrain[trackers]' installs it") from error
        self._make_metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient(tracking_uri or (workdir / "trackers" / "mlflow").absolute().as_uri())
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        runs = self._client.search_runs([experiment_id], f"tags.`{_TAG}` = '{run_id}'")
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(experiment_id, tags={_TAG: run_id}, run_name=name or None).info.run_id
            for key, value in flatten(config):
                self._client.log_param(self._id, _allowed(key), str(value)[:_MAX_PARAM])

    def write_scalars(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> None:
        millis = int(time * 1000)
        metrics = [
            self._make_metric(_allowed(f"{split}/{redact(key)}"), float(value), millis, step)
            for key, value in scalars.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def write_text(self, step: int, name: str, text: str) -> None:
        self._client.log_text(self._id, redact(text), f"{_allowed(redact(name))}/{step}.txt")

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        self._client.log_image(self._id, image, f"{_allowed(redact(name))}/{step}.png")

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _allowed(name: str) -> str:
    """`name` in the characters that MLflow takes."""
    return re.sub(r"[^\w\-./ ]", "_", name)
