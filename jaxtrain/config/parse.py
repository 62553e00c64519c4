"""The first stage of validation: reads nested data into a `Config`, collecting every problem, importing nothing."""

import dataclasses
import difflib
import functools
import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ml_collections import config_dict

from jaxtrain.config import coerce, plain, raw
from jaxtrain.config.limits import Limit
from jaxtrain.config.overrides import Draft
from jaxtrain.config.schema import Config, Eval, Spec
from jaxtrain.errors import ConfigError, Problem


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A config and what is wrong with it.

    config: every wrong value is replaced by the nearest right one or by its default: the second stage can go on.
    origins: for each dotted key of `to_dict(config)`: a mode ("--smoke"), "flag", "file", "data" (an eval
        took it from there) or "default".
    """

    config: Config
    problems: tuple[Problem, ...]
    origins: Mapping[str, str]

    def checked(self) -> Config:
        """The config. Raises ConfigError if there is any problem."""
        if self.problems:
            raise ConfigError(self.problems)
        return self.config


def parse(source: Draft | config_dict.ConfigDict | Mapping[str, Any] | Config) -> Parsed:
    """Read a config from what `load` returned, or from plain Python data. Never raises for anything a user wrote."""
    draft = source if isinstance(source, Draft) else Draft(source)
    clean, problems = raw.clean(draft.raw)
    reader = _Reader([*draft.problems, *problems])
    config = reader.group(Config, clean, "")
    config = dataclasses.replace(
        config, evals={name: _with_data_of_training(evaluation, config) for name, evaluation in config.evals.items()}
    )
    for axis in [axis for axis, size in vars(config.mesh).items() if size == -1][1:]:
        allowed = "only one axis of the mesh may be -1"
        reader.problems.append(Problem(f"mesh.{axis}", -1, allowed, f"Use --config.mesh.{axis}=1."))
        config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, **{axis: 1}))
    return Parsed(config, tuple(reader.problems), _origins(config, draft, clean))


def from_dict(values: Mapping[str, Any]) -> Config:
    """Read back what `to_dict` returned. Raises ConfigError."""
    return parse(values).checked()


def suggestion(key: str, value: Any) -> str:
    """The sentence that says which flag would be right."""
    text = ",".join(map(str, value)) + "," * (len(value) == 1) if isinstance(value, tuple | list) else value
    text = str(text).lower() if isinstance(text, bool) or text is None else str(text)
    return f"Use --config.{key}={shlex.quote(text)}."


def unknown(key: str, value: Any, what: str, known: Sequence[str]) -> Problem:
    """The problem of a key that is none of the `known` ones of its group, told with the likeliest right key."""
    group, _, name = key.rpartition(".")
    prefix = f"{group}." if group else ""
    names = {path.rpartition(".")[2]: path for path in _all_keys()}
    close = [prefix + match for match in _closest(name, known, 0.65 if len(name) > 3 else 0.5)]
    close = close or [names[match] for match in _closest(name, tuple(names), 0.8)]
    allowed = f"{what}; there are {', '.join(known)}" if known else f"{what}; there are none"
    fix = "Use " + " or ".join(f"--config.{right}={shlex.quote(raw.shown(value))}" for right in close) + "."
    fix = fix if close else ""
    return Problem(key, raw.shown(value), allowed, fix)


def _closest(name: str, known: Sequence[str], cutoff: float) -> list[str]:
    """The names most like `name`; more than one where they are equally like it."""
    matches = difflib.get_close_matches(name, known, 3, cutoff)
    likeness = [difflib.SequenceMatcher(None, match, name).ratio() for match in matches]
    return sorted(match for match, ratio in zip(matches, likeness, strict=True) if ratio == likeness[0])


class _Reader:
    """Reads values as the annotations of the schema say, collecting problems."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems

    def value(self, annotation: Any, value: Any, key: str, default: Any) -> Any:
        kind, limits = _split(annotation)
        if dataclasses.is_dataclass(kind):
            return self.group(typing.cast(type, kind), value, key)
        if typing.get_origin(kind) is Mapping:
            return self.named(typing.get_args(kind)[1], value, key, limits)
        return self.scalar(kind, value, key, default, limits)

    def group(self, cls: type, values: Any, key: str) -> Any:
        fields = _fields(cls)
        if not isinstance(values, Mapping):
            if "type" in fields and raw.is_object(values):
                values = {"type": values}
            else:
                return self._not_a_group(cls, values, key)
        prefix = f"{key}." if key else ""
        read, extra = {}, {}
        for name, value in values.items():
            if name in fields and name != "options":
                continue
            if "options" in fields:
                extra[name] = self.option(value, f"{prefix}{name}")
            else:
                what = f"is not a key of --config.{key}" if key else "is not a key of a config"
                self.problems.append(unknown(f"{prefix}{name}", value, what, tuple(fields)))
        for name, (annotation, default) in fields.items():
            if name == "options":
                read[name] = extra
            else:
                absent = {} if dataclasses.is_dataclass(annotation) else default
                read[name] = self.value(annotation, values.get(name, absent), f"{prefix}{name}", default)
        return cls(**read)

    def named(self, kind: Any, values: Any, key: str, limits: tuple[Limit, ...]) -> dict[str, Any]:
        if not isinstance(values, Mapping):
            allowed = f"is a group of named entries; set their keys, as in --config.{key}.NAME.KEY=VALUE"
            self.problems.append(Problem(key, raw.shown(values), allowed))
            return {}
        read = {}
        for name, value in values.items():
            wrong = next((limit for limit in limits if not limit.accepts(name)), None)
            if wrong is None:
                read[name] = self.value(kind, value, f"{key}.{name}", None)
            else:
                right = wrong.nearest(name)
                fix = f"Name it {right}, as in --config.{key}.{right}." if right else ""
                self.problems.append(Problem(f"{key}.{name}", "{...}", f"a name here {wrong.allowed}", fix))
        return read

    def option(self, value: Any, key: str) -> Any:
        """An option is typed later, by the signature it belongs to; a mapping with a type is a Spec."""
        if isinstance(value, Mapping):
            if "type" in value:
                return self.group(Spec, value, key)
            return {name: self.option(item, f"{key}.{name}") for name, item in value.items()}
        if isinstance(value, tuple | list):
            return tuple(self.option(item, key) for item in value)
        return value

    def scalar(self, kind: Any, value: Any, key: str, default: Any, limits: tuple[Limit, ...]) -> Any:
        if isinstance(value, Mapping):
            for inner, item in plain.flatten(value or {"": value}, f"{key}."):
                self.problems.append(
                    Problem(inner.rstrip("."), raw.shown(item), f"--config.{key} is a value and has no keys")
                )
            return default
        try:
            value = coerce.coerce(value, kind) if kind is not Any else value
        except coerce.MismatchError as mismatch:
            return self._replaced(value, f"must be {mismatch.allowed}", mismatch.nearest, key, default, kind, limits)
        wrong = next((limit for limit in limits if not limit.accepts(value)), None)
        if wrong is None:
            return str(value) if isinstance(value, str) else value
        return self._replaced(value, wrong.allowed, wrong.nearest(value), key, default, kind, limits)

    def _replaced(
        self, value: Any, allowed: str, nearest: Any, key: str, default: Any, kind: Any, limits: tuple[Limit, ...]
    ) -> Any:
        """Report a wrong value; the value that takes its place is the nearest right one, else the default."""
        for limit in limits:
            if nearest is not None and nearest is not coerce.NOTHING and not limit.accepts(nearest):
                nearest = limit.nearest(nearest)
        right = default if nearest is None or nearest is coerce.NOTHING else nearest
        fix = suggestion(key, right) if all(limit.accepts(right) for limit in limits) else ""
        if isinstance(default, str) and kind is Any:
            right = ""  # the second stage leaves out what names no target, rather than check a guess
        if key not in {problem.key for problem in self.problems}:  # one thing wrong with a value is told
            self.problems.append(Problem(key, raw.shown(value), allowed, fix))
        return right

    def _not_a_group(self, cls: type, value: Any, key: str) -> Any:
        fields = tuple(_fields(cls))
        allowed = f"is a group with the keys {', '.join(name for name in fields if name != 'options')}"
        is_path = isinstance(value, str) and "type" in fields
        fix = (
            suggestion(f"{key}.type", raw.shown(value))
            if is_path
            else f"Set its keys, as in --config.{key}.{fields[0]}."
        )
        self.problems.append(Problem(key, raw.shown(value), allowed, fix))
        return cls()


def _with_data_of_training(evaluation: Eval, config: Config) -> Eval:
    if evaluation.data.type != "":
        return evaluation
    options = {**config.data.options, **evaluation.data.options}
    return dataclasses.replace(
        evaluation, data=dataclasses.replace(evaluation.data, type=config.data.type, options=options)
    )


def _origins(config: Config, draft: Draft, given: Mapping[str, Any]) -> dict[str, str]:
    defaults, values = dict(plain.flatten(plain.to_dict(Config()))), dict(plain.flatten(given))
    origins = {}
    for key, _ in plain.flatten(plain.to_dict(config)):
        if key in draft.modes:
            origins[key] = draft.modes[key]
        elif any(key == flag or key.startswith(f"{flag}.") for flag in draft.flags):
            origins[key] = "flag"
        elif key in values and (key not in defaults or values[key] != defaults[key]):
            origins[key] = "file"
        elif key.startswith("evals.") and key.split(".")[2:3] == ["data"] and key not in values:
            is_default = key.endswith(".data.transforms")
            origins[key] = "default" if is_default else "data"
        else:
            origins[key] = "default"
    return origins


@functools.cache
def _fields(cls: type) -> dict[str, tuple[Any, Any]]:
    """The annotation and default of each field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: (hints[field.name], {} if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(cls)
    }


def _split(annotation: Any) -> tuple[Any, tuple[Limit, ...]]:
    """A type and the limits that stand beside it."""
    if typing.get_origin(annotation) is Annotated:
        kind, *limits = typing.get_args(annotation)
        return kind, tuple(limit for limit in limits if isinstance(limit, Limit))
    return annotation, ()


@functools.cache
def _all_keys() -> tuple[str, ...]:
    return tuple(key for key, _ in plain.flatten(plain.to_dict(Config())))
