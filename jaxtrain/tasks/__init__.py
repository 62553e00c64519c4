"""Tasks: what a model is trained to do. A task joins a model with a loss."""

from jaxtrain.tasks.task import Output, Task

__all__ = ["Output", "Task"]
