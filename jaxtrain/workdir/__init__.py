"""A run's directory: its layout, its lock, its status, its log files."""

from jaxtrain.workdir.layout import Workdir
from jaxtrain.workdir.logs import setup_logging

__all__ = ["Workdir", "setup_logging"]
