"""Keys of running and watching a run: when it is saved, what it writes, how it ends."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from jaxtrain.config import limits
from jaxtrain.config.limits import BestMetric, Count, CountOrZero, Name
from jaxtrain.config.parts import Spec


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """When the state is saved and what is kept."""

    # Time between checkpoints; one is also made at the end.
    every: Annotated[str, limits.length(empty="only at the end")] = "1000 steps"
    # Newest checkpoints to keep.
    keep_last: Count = 2
    # Keep one checkpoint of each such stretch for ever.
    keep_every: Annotated[str, limits.length(empty="none", time=False)] = ""
    # Best checkpoints to keep beside the newest ones.
    keep_best: CountOrZero = 0
    # What tells the best: an evaluation and a number of its lines, such as "validation/loss"; "" tells none.
    best_metric: Annotated[str, BestMetric] = ""
    # Whether the smallest or the largest number is the best.
    best_mode: Annotated[str, limits.one_of("min", "max")] = "min"


@dataclasses.dataclass(frozen=True)
class Log:
    """What is written while training."""

    # Time between train lines of metrics.jsonl.
    every: Annotated[str, limits.length(empty="never")] = "10 steps"
    # Also write TensorBoard event files.
    tensorboard: bool = True
    # Also show the numbers in these, such as jaxtrain.writers.wandb:WandB; what one fails to do never ends the run.
    trackers: Annotated[Mapping[str, Spec], Name] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Profile:
    """Which steps are traced into profile/ of the workdir."""

    # Steps to trace, "10:13" for 10, 11 and 12; "" traces none.
    steps: Annotated[str, limits.step_range()] = ""
    # Steps to trace when SIGUSR2 arrives.
    num_steps: Count = 3


@dataclasses.dataclass(frozen=True)
class Preemption:
    """What happens on SIGTERM, SIGUSR1 and Ctrl-C."""

    # Seconds from the signal in which the run must have saved and ended.
    grace_secs: Annotated[float, limits.at_least(0.0)] = 60.0


@dataclasses.dataclass(frozen=True)
class Distributed:
    """The processes that train together, and how they find each other."""

    # "auto" reads what started them (SLURM, Open MPI, a Kubernetes indexed job, JAXTRAIN_ variables), "explicit" these
    # variables alone; "off" is one process whatever the environment says.
    mode: Annotated[str, limits.one_of("auto", "explicit", "off")] = "auto"
    # Where process 0 is reached, "host:port"; "" takes what started the processes.
    coordinator: Annotated[str, limits.address()] = ""
    # Seconds in which all processes must have come.
    init_timeout_secs: Annotated[float, limits.above(0.0)] = 1800.0
    # Seconds of silence after which a process is lost.
    heartbeat_timeout_secs: Annotated[float, limits.above(0.0)] = 60.0
