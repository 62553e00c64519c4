"""Checkpoints that commit atomically, verify before use and are never lost silently."""

from jaxtrain.checkpoint.manager import Checkpoints
from jaxtrain.checkpoint.manifest import Manifest
from jaxtrain.checkpoint.verify import Found

__all__ = ["Checkpoints", "Found", "Manifest"]
