"""The processes of a run: how they find each other and what they agree on."""

from jaxtrain.distributed.agreement import require_same
from jaxtrain.distributed.crew import Alone, Crew, Stop
from jaxtrain.distributed.join import join, joined, leave

__all__ = ["Alone", "Crew", "Stop", "join", "joined", "leave", "require_same"]
