"""The optimizer chain of a config: clipping, the optimizer for each group of parameters, their rate factors."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxtrain.build import build, import_target, signature
from jaxtrain.build.targets import REQUIRED
from jaxtrain.config import Config, raw, schema
from jaxtrain.errors import ConfigError, Problem
from jaxtrain.param_groups import DEFAULT, ParamGroups, decayed, path_of
from jaxtrain.schedules import Schedule, with_warmup
from jaxtrain.typing import Array, Params

# What the signatures of optax call the strength of decoupled weight decay, and the mask that says what it is for.
DECAYS = ("weight_decay", "weight_decay_rate", "adam_weight_decay")
MASKS = ("mask", "weight_decay_mask")
UNMASKED_DECAY = "adam_weight_decay"  # muon's, for what is no matrix, and not reached by its mask
# Parts of a partition beside those named after groups.
FROZEN, UNDECAYED = "frozen", "undecayed"


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What turns gradients into updates.

    transformation: what the step applies.   learning_rate: updates made -> rate of the next one, float32; groups
    multiply it with their factors.   groups: which parameters are treated how.
    """

    transformation: optax.GradientTransformation
    learning_rate: Callable[[Array], Array]
    groups: ParamGroups


def make_optimizer(
    config: Config, num_steps: int | None, warmup_steps: int, freeze_steps: Mapping[str, int] | None = None
) -> Optimizer:
    """Build the optimizer that `config` describes for a run of `num_steps` (None: its length is a time).

    freeze_steps: how long each group is frozen that is frozen for a while.
    Clipping, where asked for, comes first and sees the whole batch's gradient. Raises ConfigError.
    """
    if num_steps is not None and warmup_steps >= num_steps:
        raise ConfigError(
            [
                Problem(
                    "schedule.warmup",
                    config.schedule.warmup,
                    f"a warmup of {warmup_steps} steps never ends in a run of {num_steps}, so the rate never peaks",
                    f'Use at most "{num_steps - 1} steps".' if num_steps > 1 else 'Use "" (none).',
                )
            ]
        )
    runtime = {} if num_steps is None else {"num_steps": num_steps - warmup_steps}
    if num_steps is None and _asks_for_num_steps(config.schedule):
        raise ConfigError(
            [
                Problem(
                    "schedule.type",
                    config.schedule.type,
                    f"it needs to know the number of steps, but --config.duration={config.duration} is a time",
                    "Say it with --config.schedule.num_steps=N, or use the constant schedule.",
                )
            ]
        )
    schedule = build(config.schedule, "schedule", **runtime)
    _refuse_zero_schedule(schedule, config)  # before a warmup hides its start
    schedule = with_warmup(schedule, warmup_steps)
    peak = config.optimizer.learning_rate

    def learning_rate(updates: Array) -> Array:
        return jnp.asarray(peak * schedule(updates), jnp.float32)

    decays = _decays(config.optimizer)
    has_own_mask = any(name in config.optimizer.options for name in MASKS)
    groups = ParamGroups(config.param_groups, decayed if decays and not has_own_mask else None, freeze_steps or {})
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    # Always the same three, so that the state keeps its structure when clipping is turned on or off.
    transformation = optax.chain(clip, _by_group(config, groups, learning_rate), _scale_by_factors(groups))
    return Optimizer(optax.with_extra_args_support(transformation), learning_rate, groups)


def _options(spec: schema.Optimizer) -> Mapping[str, Any]:
    """Give the options of the optimizer's signature, with their defaults; none for an object built in Python."""
    return signature(import_target(spec.type, "optimizer")).options if isinstance(spec.type, str) else {}


def _decays(spec: schema.Optimizer) -> list[str]:
    return [name for name in DECAYS if name in _options(spec)]


def _by_group(config: Config, groups: ParamGroups, learning_rate: Callable[[Array], Array]) -> Any:
    """Give the optimizer of the config; where groups ask for more than a rate, one for each part of the parameters.

    `optax.partition` hands every parameter to its part: a group with a weight decay of its own, frozen ones to
    `optax.set_to_zero`, which has no state, and the rest to the optimizer as it is.
    """
    parts = _parts(config, groups, learning_rate)
    if len(parts) == 1:
        return parts[DEFAULT]

    def part(path: Any, is_decayed: bool) -> str:
        name = groups.name_of(path_of(path))
        if groups[name].freeze:
            return FROZEN
        if UNDECAYED in parts and not is_decayed:
            return UNDECAYED
        return name if name in parts else DEFAULT

    return optax.partition(parts, lambda params: jax.tree.map_with_path(part, decayed(params)))


def _parts(config: Config, groups: ParamGroups, learning_rate: Callable[[Array], Array]) -> dict[str, Any]:
    """Build each part of the partition."""
    spec, decays = config.optimizer, _decays(config.optimizer)

    def made(**options: Any) -> Any:
        masks = dict.fromkeys(MASKS, decayed) if decays else {}  # `build` passes the one that the signature names
        typed = dataclasses.replace(spec, options={**spec.options, **options})
        return build(typed, "optimizer", learning_rate=learning_rate, **masks)

    parts = {DEFAULT: made()}
    for name, group in groups.groups.items():
        if group.freeze:
            parts[FROZEN] = optax.set_to_zero()
        elif group.weight_decay is not None and decays:
            parts[name] = made(**dict.fromkeys(decays, group.weight_decay))
        elif group.weight_decay is not None:
            allowed = f"{raw.shown(spec.type)} has no weight decay of its own"
            fix = "Choose an optimizer that has, as in --config.optimizer.type=optax:adamw."
            raise ConfigError([Problem(f"param_groups.{name}.weight_decay", group.weight_decay, allowed, fix)])
    if groups.decayed is not None and _decays_everything(spec, groups):
        parts[UNDECAYED] = made(**dict.fromkeys(decays, 0.0))
    return parts


def _decays_everything(spec: schema.Optimizer, groups: ParamGroups) -> bool:
    """Is there a weight decay that no mask of the optimizer's signature keeps from biases and scales?"""
    options = _options(spec)
    has_mask = any(name in options for name in MASKS)
    unmasked = [name for name in _decays(spec) if name == UNMASKED_DECAY or not has_mask]
    strengths = [spec.options.get(name, options[name].default) for name in unmasked]
    strengths += [group.weight_decay for group in groups.groups.values() if unmasked]
    return any(strengths)


def _scale_by_factors(groups: ParamGroups) -> optax.GradientTransformation:
    """Multiply the updates of each group with its rate factor."""
    if all(group.learning_rate_factor == 1.0 for group in groups.groups.values()):
        return optax.identity()

    def scale(updates: Params, params: Params | None = None) -> Params:
        names = groups.names(updates)
        return jax.tree.map(lambda name, update: groups[name].learning_rate_factor * update, names, updates)

    return optax.stateless(scale)


def _asks_for_num_steps(spec: schema.Schedule) -> bool:
    if not isinstance(spec.type, str) or "num_steps" in spec.options:
        return False
    option = signature(import_target(spec.type, "schedule")).options.get("num_steps")
    return option is not None and option.default is REQUIRED


def _refuse_zero_schedule(schedule: Schedule, config: Config) -> None:
    """Refuse a schedule that starts at 0 and stays there, as some of optax's do with 0 transition steps."""
    start = [float(schedule(jnp.array(updates, jnp.int32))) for updates in (0, 1, 2)]
    if not all(math.isfinite(factor) for factor in start) or max(start) <= 0.0:
        raise ConfigError(
            [
                Problem(
                    "schedule.type",
                    config.schedule.type,
                    f"its first factors are {start}; it must be finite and above 0 within the first 3 updates",
                    'Leave the warmup to --config.schedule.warmup="N steps".',
                )
            ]
        )


def sgd(
    learning_rate: Any, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0, mask: Any = None
) -> optax.GradientTransformation:
    """Descend along gradient + weight_decay * parameter, with momentum: the L2 penalty is part of the gradient.

    `optax.sgd` has no decay, and that of `optax.adamw` is added after the momentum. mask: which parameters decay, as a
    tree of bools or a function of the parameters; None: all.
    """
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask), optax.sgd(learning_rate, momentum or None, nesterov)
    )
