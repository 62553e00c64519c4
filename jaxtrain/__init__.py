"""Train Flax models with JAX: `python -m jaxtrain --config=configs/x.py`, or `train(config)` from a notebook cell."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtrain.callbacks import Callback
    from jaxtrain.config import default_config
    from jaxtrain.metrics import Mean
    from jaxtrain.params import load_params
    from jaxtrain.result import Result
    from jaxtrain.step import make_train_step
    from jaxtrain.tasks import Output, Task
    from jaxtrain.train import train

_HOMES = {
    "Callback": "jaxtrain.callbacks",
    "Mean": "jaxtrain.metrics",
    "Output": "jaxtrain.tasks",
    "Result": "jaxtrain.result",
    "Task": "jaxtrain.tasks",
    "default_config": "jaxtrain.config",
    "load_params": "jaxtrain.params",
    "make_train_step": "jaxtrain.step",
    "train": "jaxtrain.train",
}

__all__ = ["Callback", "Mean", "Output", "Result", "Task", "default_config", "load_params", "make_train_step", "train"]


def __getattr__(name: str) -> Any:
    # Imported when first used: a config file needs `default_config` and neither JAX nor its seconds of import.
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxtrain' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """Keeps `jaxtrain.train` the function: importing the module of that name would put the module in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
