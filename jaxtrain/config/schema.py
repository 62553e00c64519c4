"""Every key of a config, its type, its limits and its default: the only place where a default stands.

A class with `options` is open: every key that is not one of its fields is an option of what its `type` names.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from jaxtrain.config import limits
from jaxtrain.config.limits import Count, CountOrZero, Dtype, EvalName, GroupName, Name, Size
from jaxtrain.config.operation import Checkpoint as Checkpoint
from jaxtrain.config.operation import Distributed as Distributed
from jaxtrain.config.operation import Log as Log
from jaxtrain.config.operation import Preemption as Preemption
from jaxtrain.config.operation import Profile as Profile
from jaxtrain.config.parts import Data as Data
from jaxtrain.config.parts import Eval as Eval
from jaxtrain.config.parts import EvalData as EvalData
from jaxtrain.config.parts import Options as Options
from jaxtrain.config.parts import Spec as Spec


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What turns gradients into updates."""

    # Any function that returns an optax.GradientTransformation.
    type: Annotated[Any, limits.import_path("optax:adamw")] = "optax:adamw"
    # The peak; `schedule` is a factor of it.
    learning_rate: Annotated[float, limits.at_least(0.0)] = 1e-3
    # What the signature of `type` takes.
    options: Options = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The factor of the learning rate at each step."""

    # Any function that returns a function of the step.
    type: Annotated[Any, limits.import_path("jaxtrain.schedules:constant")] = "jaxtrain.schedules:constant"
    # Time in which the factor rises from 0 to 1.
    warmup: Annotated[str, limits.length(empty="none", time=False)] = ""
    # What the signature of `type` takes.
    options: Options = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ParamGroup:
    """Parameters that are treated otherwise than the rest."""

    # A regular expression, searched for in paths like "block/attention/query/kernel"; the first that matches wins.
    match: Annotated[str, limits.regex()] = ""
    # Multiplies the updates.
    learning_rate_factor: Annotated[float, limits.at_least(0.0)] = 1.0
    # In place of the optimizer's own; none keeps that.
    weight_decay: Annotated[float | None, limits.or_none(limits.at_least(0.0))] = None
    # Keep the parameters as they are, without gradients and without optimizer state.
    freeze: bool = False
    # Keep them as they are for so long only, and train them from then on.
    freeze_for: Annotated[str, limits.length(empty="not at all", time=False)] = ""


@dataclasses.dataclass(frozen=True)
class Ema:
    """A moving average of the parameters, which evaluations use."""

    # Share of the average that each update keeps; 0 keeps no average.
    decay: Annotated[float, limits.fraction()] = 0.0


@dataclasses.dataclass(frozen=True)
class Accumulation:
    """How the gradient of a batch is summed up."""

    # Slices of a batch that pass through the model one after the other.
    microbatches: Count = 1
    # Who sums: optax.MultiSteps or one fused scan. The numbers are the same.
    engine: Annotated[str, limits.one_of("multisteps", "fused")] = "multisteps"
    # Gradients meet over the devices after each microbatch, or once a step: less to send, more memory.
    reduce: Annotated[str, limits.one_of("each", "once")] = "each"
    # Parameters that fsdp splits are gathered for each microbatch, or once a step for all: less to send, more memory.
    gather: Annotated[str, limits.one_of("each", "once")] = "each"


@dataclasses.dataclass(frozen=True)
class Precision:
    """Floating-point types."""

    # Parameters, moments and sums.
    params: Dtype = "float32"
    # What the model computes in.
    compute: Dtype = "float32"


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """What happens when a loss or gradient is NaN or infinite: the update is always left out."""

    # End the run, or go on with the next batch.
    policy: Annotated[str, limits.one_of("stop", "skip")] = "stop"
    # Skipped steps in a row that end the run.
    limit: Count = 10


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices along each axis; one may be -1, the rest. The product is the device count."""

    # Groups of devices that hold the same parameters and different examples.
    data: Size = -1
    # Devices that share the parameters out among them.
    fsdp: Size = 1
    # Devices that share out the positions of a sequence.
    sequence: Size = 1
    # Devices that share out the computations of each layer: heads, hidden features and the vocabulary.
    tensor: Size = 1


@dataclasses.dataclass(frozen=True)
class ShardingRule:
    """How the parameters of some paths are shared out."""

    # A regular expression, searched for in paths like "block/attention/query/kernel".
    match: Annotated[str, limits.regex()] = ""
    # Mesh axes of each dim, as "-, fsdp" or "data+fsdp"; "-" leaves a dim whole, "" all of them.
    spec: str = ""


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Which arrays are shared out."""

    # For each parameter the first that matches decides; where none does, the model's annotations, then automatic FSDP.
    rules: Annotated[Mapping[str, ShardingRule], Name] = dataclasses.field(default_factory=dict)
    # Mesh axes that the names of dims stand for, as {"embed": "fsdp"} or {"mlp": ""}, merged over those that names have
    # by default: heads, kv_heads, mlp, vocab: tensor; seq: sequence; batch: data+fsdp.
    logical_axes: Annotated[Mapping[str, str], Name] = dataclasses.field(default_factory=dict)
    # Elements below which an array is kept whole on each device.
    min_size: CountOrZero = 65536
    # Share optimizer state out over `data` too, although the parameters are not.
    zero1: bool = False
    # Elements of parameters that automatic FSDP may leave whole on each device, in all.
    max_unsharded: CountOrZero = 16_777_216


@dataclasses.dataclass(frozen=True)
class Rename:
    """How names of saved leaves become those of the model."""

    # A regular expression, searched for in names like "block/attention/query/kernel"; every match is replaced.
    match: Annotated[str, limits.regex()] = ""
    # What takes its place, in which \1 is the first group of `match`.
    replace: str = ""


@dataclasses.dataclass(frozen=True)
class InitFrom:
    """The weights that a fresh run starts from. A resumed run has its own."""

    # A workdir (its newest checkpoint), one of its checkpoints/<step>, or a .safetensors file; "" for new weights.
    path: str = ""
    # Applied to the names of saved leaves, each to what the ones before it made.
    rename: Annotated[Mapping[str, Rename], Name] = dataclasses.field(default_factory=dict)
    # Leaves of the model that keep their initial values, although the source may have them.
    keep: Annotated[str, limits.regex(empty="none")] = ""
    # Saved leaves that are left out, by the names they were saved under.
    drop: Annotated[str, limits.regex(empty="none")] = ""
    # Convert floats also to a dtype that does not hold all their bits.
    cast: bool = False


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment."""

    # Name of the run, and of its default workdir runs/<name>; "" takes the stem of the config file.
    name: Annotated[str, limits.words("a file name", r"([A-Za-z0-9_][A-Za-z0-9_.,=+-]*)?")] = ""
    # Everything random follows from it.
    seed: Annotated[int, limits.between(0, 2**32 - 1)] = 0
    # How long to train.
    duration: Annotated[str, limits.length()] = ""
    # Examples per step, over all devices and microbatches.
    batch_size: Count = 32
    init_from: InitFrom = InitFrom()
    # Where compiled programs are kept: a directory, "auto" for one of this user's own, "" for nowhere.
    compile_cache: str = "auto"
    # Use only operations that give the same bits each time.
    deterministic: bool = True
    task: Spec = Spec()
    data: Data = Data()
    evals: Annotated[Mapping[str, Eval], EvalName] = dataclasses.field(default_factory=dict)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    # Largest global norm of a gradient, of which longer ones keep the direction; 0 does not clip.
    clip_norm: Annotated[float, limits.at_least(0.0)] = 0.0
    # Parameters with a rate or decay of their own, or frozen; the first group that matches a parameter has it.
    param_groups: Annotated[Mapping[str, ParamGroup], GroupName] = dataclasses.field(default_factory=dict)
    ema: Ema = Ema()
    accumulation: Accumulation = Accumulation()
    precision: Precision = Precision()
    nonfinite: NonFinite = NonFinite()
    mesh: Mesh = Mesh()
    sharding: Sharding = Sharding()
    checkpoint: Checkpoint = Checkpoint()
    log: Log = Log()
    profile: Profile = Profile()
    # Run in this order after each step.
    callbacks: Annotated[Mapping[str, Spec], Name] = dataclasses.field(default_factory=dict)
    preemption: Preemption = Preemption()
    distributed: Distributed = Distributed()
