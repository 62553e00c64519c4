"""The second stage of validation for options: each is typed and checked by the signature it belongs to."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from jaxtrain.build.targets import REQUIRED, import_target, signature
from jaxtrain.config import coerce, raw
from jaxtrain.config.parse import suggestion, unknown
from jaxtrain.config.schema import Config, Data, EvalData, Optimizer, Schedule, Spec
from jaxtrain.errors import ConfigError, Problem
from jaxtrain.redact import is_reference

# What the trainer itself passes to a target whose signature asks for it, by the place of the target in the config.
RUNTIME_NAMES = {
    "task": ("vocab_size", "rngs"),
    "data": ("seed",),
    "optimizer": ("learning_rate",),
    "schedule": ("num_steps",),
    "callbacks": ("config", "experiment"),
    "log.trackers": ("workdir", "run_id", "name", "config"),
}
OPEN = (Spec, Data, EvalData, Optimizer, Schedule)


def check_options(config: Config) -> tuple[Config, list[Problem]]:
    """Type and check the options of everything pluggable. What names no target (`type=""`) is left out.

    Imports the targets. The options an eval takes from `data` are told once, as those of `data`.
    """
    problems: list[Problem] = []

    def check(spec: Any, key: str, place: str = "", **kwargs: Any) -> Any:
        typed, found = type_options(spec, key, RUNTIME_NAMES[place or key], **kwargs)
        problems.extend(found)
        transforms = getattr(spec, "transforms", None)
        return typed if transforms is None else dataclasses.replace(typed, transforms=named(transforms, key))

    def named(specs: Mapping[str, Spec], key: str) -> dict[str, Spec]:
        return {name: check(spec, f"{key}.transforms.{name}", "data") for name, spec in specs.items()}

    def each(specs: Mapping[str, Spec], place: str) -> dict[str, Spec]:
        return {name: check(spec, f"{place}.{name}", place) for name, spec in specs.items()}

    typed = dataclasses.replace(
        config,
        task=check(config.task, "task"),
        data=check(config.data, "data"),
        optimizer=check(config.optimizer, "optimizer", finite=True),
        schedule=check(config.schedule, "schedule", finite=True),
        callbacks=each(config.callbacks, "callbacks"),
        log=dataclasses.replace(config.log, trackers=each(config.log.trackers, "log.trackers")),
    )
    evals = {}
    for name, evaluation in config.evals.items():
        known = [problem.key for problem in problems]
        evals[name] = dataclasses.replace(evaluation, data=check(evaluation.data, f"evals.{name}.data", "data"))
        inherited = {
            f"evals.{name}.{key}"
            for key in known
            if key.startswith("data.") and _is_inherited(key, evaluation.data, config)
        }
        problems[:] = [problem for problem in problems if problem.key not in inherited]
    return dataclasses.replace(typed, evals=evals), problems


def type_options(
    spec: Any, key: str, runtime_names: Collection[str] = (), *, finite: bool = False
) -> tuple[Any, list[Problem]]:
    """Return `spec` (or another class of the schema with `type` and `options`) with typed options, and what is wrong.

    key: where it stands in the config ("": unknown). finite: refuse options that are NaN or infinite.
    """
    prefix = f"{key}." if key else ""
    if spec.type == "":
        return spec, []
    if not isinstance(spec.type, str):
        allowed = "is an object built in Python, which takes no options"
        return spec, [Problem(prefix + name, raw.shown(value), allowed) for name, value in spec.options.items()]
    try:
        target = import_target(spec.type, key)
    except ConfigError as error:
        return spec, list(error.problems)
    expected = signature(target) if callable(target) else None
    if expected is None:
        allowed = f"{spec.type} is no class or function and takes no options"
        return spec, [Problem(prefix + name, raw.shown(value), allowed) for name, value in spec.options.items()]
    problems: list[Problem] = []
    typed = {}
    fields = [field.name for field in dataclasses.fields(spec) if field.name not in ("type", "options")]
    for name, value in spec.options.items():
        option_key = prefix + name
        if name in expected.options or expected.takes_any:
            option = expected.options.get(name)
            default = option.default if option else REQUIRED
            annotation = option.annotation if option else Any
            typed[name], found = _typed(value, annotation, option_key, runtime_names, default)
            problems += found
            if finite and not found and isinstance(typed[name], float) and not math.isfinite(typed[name]):
                problems.append(_problem(option_key, value, "a finite number", default))
        else:
            known = dict.fromkeys([*(known for known in expected.options if known not in runtime_names), *fields])
            problems.append(unknown(option_key, value, f"is not an option of {spec.type}", tuple(known)))
    for name, option in expected.options.items():
        if option.default is REQUIRED and name not in spec.options and name not in runtime_names and name not in fields:
            allowed = f"is missing: {spec.type} needs {coerce.describe(option.annotation)}"
            problems.append(Problem(prefix + name, "", allowed))
    return dataclasses.replace(spec, options=typed), problems


def _typed(
    value: Any, annotation: Any, key: str, runtime_names: Collection[str], default: Any
) -> tuple[Any, list[Problem]]:
    """One option. Specs, also those inside lists and mappings, are typed by their own targets."""
    if isinstance(value, OPEN):
        return type_options(value, key, runtime_names)
    if holds_spec(value):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        pairs = {name: _typed(item, Any, f"{key}.{name}", runtime_names, REQUIRED) for name, item in items}
        problems = [problem for _, found in pairs.values() for problem in found]
        typed = {name: item for name, (item, _) in pairs.items()}
        return (typed if isinstance(value, Mapping) else tuple(typed.values())), problems
    if is_reference(value):
        return str(value), []  # typed when it is resolved
    try:
        return coerce.coerce(value, annotation), []
    except coerce.MismatchError as mismatch:
        nearest = default if mismatch.nearest is coerce.NOTHING else mismatch.nearest
        return value, [_problem(key, value, mismatch.allowed, nearest)]


def holds_spec(value: Any) -> bool:
    """Is there something to build inside this list or mapping?"""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return any(isinstance(item, OPEN) or holds_spec(item) for item in items)


def _problem(key: str, value: Any, allowed: str, nearest: Any) -> Problem:
    is_plain = nearest is None or isinstance(nearest, bool | int | float | str | tuple)
    return Problem(key, raw.shown(value), f"must be {allowed}", suggestion(key, nearest) if is_plain else "")


def _is_inherited(key: str, data: EvalData, config: Config) -> bool:
    """Does the problem of this key of `data` come back in an eval only because the eval took the option over?"""
    name = key.split(".")[1]
    if name == "transforms" or data.type != config.data.type:
        return False
    return name not in data.options or data.options.get(name) is config.data.options.get(name)
