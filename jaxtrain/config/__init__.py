"""The config of a run: its schema, and the static stage of its validation. Imports no jax."""

from jaxtrain.config.coerce import Text
from jaxtrain.config.loading import load
from jaxtrain.config.overrides import Draft, split_argv, unknown_flags
from jaxtrain.config.parse import Parsed, from_dict, parse
from jaxtrain.config.plain import config_hash, default_config, flatten, to_dict
from jaxtrain.config.schema import (
    Accumulation,
    Checkpoint,
    Config,
    Data,
    Ema,
    Eval,
    EvalData,
    Log,
    Mesh,
    NonFinite,
    Optimizer,
    ParamGroup,
    Precision,
    Preemption,
    Schedule,
    Sharding,
    ShardingRule,
    Spec,
)

__all__ = [
    "Accumulation",
    "Checkpoint",
    "Config",
    "Data",
    "Draft",
    "Ema",
    "Eval",
    "EvalData",
    "Log",
    "Mesh",
    "NonFinite",
    "Optimizer",
    "ParamGroup",
    "Parsed",
    "Precision",
    "Preemption",
    "Schedule",
    "Sharding",
    "ShardingRule",
    "Spec",
    "Text",
    "config_hash",
    "default_config",
    "flatten",
    "from_dict",
    "load",
    "parse",
    "split_argv",
    "to_dict",
    "unknown_flags",
]
