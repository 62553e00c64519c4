"""What an import path names, and what its signature says about its options."""

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxtrain.config.loading import describe_failure, make_cwd_importable
from jaxtrain.errors import ConfigError, Problem

REQUIRED = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Option:
    """One parameter of a target. `default` is REQUIRED where the target has none."""

    annotation: Any
    default: Any


@dataclasses.dataclass(frozen=True)
class Signature:
    """The options of a target. `takes_any`: others too, by **kwargs."""

    options: Mapping[str, Option]
    takes_any: bool


def import_target(path: str, key: str = "") -> Any:
    """Import what "package.module:Name" names; files of the current directory can be named too.

    Raises ConfigError, telling the `key` whose `type` it is.
    """
    module_name, _, name = path.partition(":")
    type_key = f"{key}.type" if key else "type"
    make_cwd_importable()
    try:
        target = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise ConfigError([_failed(type_key, path, error)]) from error
        fix = (
            _did_you_mean(missing, _siblings(missing)) or "It must be installed, or be a file of the current directory."
        )
        problem = Problem(type_key, path, f"there is no module {missing}", fix)
        raise ConfigError([problem]) from error
    except (Exception, SystemExit) as error:
        raise ConfigError([_failed(type_key, path, error)]) from error
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            public = [other for other in dir(target) if not other.startswith("_")]
            where = f"{module_name} has no {name}"
            raise ConfigError([Problem(type_key, path, where, _did_you_mean(part, public))]) from None
    return target


def signature(target: Callable[..., Any]) -> Signature:
    """Read the options of a class or function.

    A class is asked by its own `__init__`, since a metaclass (that of nnx) may hide it. The fields `parent` and `name`
    that linen adds to every module are no options.
    """
    hidden = {"parent", "name"} if _is_linen(target) else set()
    function: Any = target
    if inspect.isclass(target):
        function = target.__new__ if target.__init__ is object.__init__ else target.__init__
        if function is object.__new__:
            return Signature({}, takes_any=False)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return Signature({}, takes_any=True)
    if inspect.isclass(target):
        parameters = parameters[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    options = {
        parameter.name: Option(_annotation(parameter, function), parameter.default)
        for parameter in parameters
        if parameter.kind in named and parameter.name not in hidden
    }
    return Signature(options, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters))


def _annotation(parameter: inspect.Parameter, function: Any) -> Any:
    """The annotation, evaluated if it is a text; where there is none, a text or a truth value as default tells it."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return type(parameter.default) if isinstance(parameter.default, bool | str) else Any
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"value": annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, names)["value"]
    except (NameError, TypeError, AttributeError, SyntaxError):  # names that only a type checker imports
        return Any


def _is_linen(target: Any) -> bool:
    return inspect.isclass(target) and any(base.__module__.startswith("flax.linen") for base in target.__mro__)


def _failed(key: str, path: str, error: BaseException) -> Problem:
    return Problem(key, path, f"importing it failed: {describe_failure(error)}")


def _siblings(module_name: str) -> Iterable[str]:
    """The modules beside `module_name`, by their full names."""
    parent, _, _ = module_name.rpartition(".")
    paths = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    prefix = f"{parent}." if parent else ""
    return [module.name for module in pkgutil.iter_modules(paths, prefix)]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 3, 0.6)
    return f"Did you mean {' or '.join(close)}?" if close else ""
