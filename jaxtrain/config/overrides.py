"""The flags of a config: `--config=F[:variant]` and `--config.a.b=value`, in any order."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from jaxtrain.config import raw as raw_values
from jaxtrain.config.coerce import Text
from jaxtrain.errors import ConfigError, Problem
from jaxtrain.redact import HIDDEN, is_secret_name


@dataclasses.dataclass(frozen=True)
class Draft:
    """A config before it is read: nested data, the dotted keys that flags set, and problems known so far.

    modes: the dotted keys that a mode set (modes.py), each with its name.
    """

    raw: Any
    flags: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    modes: Mapping[str, str] = dataclasses.field(default_factory=dict)


def split_argv(argv: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """Split arguments into the config argument, overrides as "a.b=value", and all others.

    Accepts `--config=F` and `--config F`, `--config.a.b=v` and `--config.a.b v`. Raises ConfigError for a flag that
    lacks its value.
    """
    argument, overrides, rest = None, [], []
    problems = []
    waiting = iter(argv)
    for flag in waiting:
        name, equals, value = flag.partition("=")
        if name != "--config" and not name.startswith("--config."):
            rest.append(flag)
            continue
        if not equals:
            following = next(waiting, None)
            if following is None or following.startswith("--"):
                problems.append(Problem(name, "", "needs a value", f"Write {name}=VALUE."))
                rest.extend([following] if following is not None and not following.startswith("--config") else [])
                continue
            value = following
        if name == "--config":
            argument = value
        else:
            overrides.append(f"{name.removeprefix('--config.')}={value}")
    if problems:
        raise ConfigError(problems)
    return argument, overrides, rest


def unknown_flags(rest: Sequence[str], known: Sequence[str]) -> list[Problem]:
    """The problems of arguments that are none of the `known` flags ("--workdir")."""
    problems = []
    for argument in rest:
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            problems.append(Problem("--", raw_values.shown(argument), "is a value without a flag"))
        elif name not in known:
            value = HIDDEN if equals and is_secret_name(name) else raw_values.shown(value)
            close = difflib.get_close_matches(name, [*known, "--config"], 1, 0.6)
            fix = f"Use {close[0]}{equals}{value}." if close else f"There are {', '.join([*known, '--config'])}."
            problems.append(Problem(raw_values.shown(name), value, "is not a flag", fix))
    return problems


def apply(values: Mapping[str, Any] | config_dict.ConfigDict, overrides: Sequence[str]) -> Draft:
    """Set overrides over the values of a config file; later ones win. A key need not exist yet."""
    nested, problems = raw_values.clean(values)
    flags = set()
    for override in overrides:
        key, _, text = override.partition("=")
        value, found = raw_values.clean_text(Text(text), raw_values.shown(key))
        problems += found
        problem = set_key(nested, key, value)
        if problem is None:
            flags.add(key)
        else:
            problems.append(problem)
    return Draft(nested, frozenset(flags), tuple(problems))


def set_key(nested: dict[str, Any], key: str, value: Any) -> Problem | None:
    """Set a dotted key, making the groups it needs. Gives the problem, and changes nothing, where that cannot be."""
    *groups, name = key.split(".")
    if not name or not all(groups) or not key.isprintable():
        allowed = "is not a key: names are joined by single dots"
        return Problem(raw_values.shown(key), raw_values.shown(value), allowed)
    for depth, group in enumerate(groups):
        inner: Any = nested.setdefault(group, {})
        if not isinstance(inner, dict):
            above = ".".join(groups[: depth + 1])
            return Problem(key, raw_values.shown(value), f"--config.{above} is a value and has no keys")
        nested = inner
    old = nested.get(name)
    if isinstance(old, dict) and "type" in old and isinstance(value, str) and not value.lstrip().startswith("{"):
        fix = f"Use --config.{key}.type={raw_values.shown(value)}."
        return Problem(key, raw_values.shown(value), "is a group of keys, one of which is its type", fix)
    nested[name] = value
    return None
