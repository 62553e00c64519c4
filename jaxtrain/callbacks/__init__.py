"""Callbacks: what you want to happen at points of a run."""

from jaxtrain.callbacks.callback import Callback, Callbacks, Run

__all__ = ["Callback", "Callbacks", "Run"]
