"""Runs a config file, and tells what went wrong in it by file and line."""

import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from jaxtrain.config import raw
from jaxtrain.config.overrides import Draft, apply
from jaxtrain.errors import ConfigError, JaxtrainError, Problem
from jaxtrain.redact import redact


def load(argument: str, overrides: Sequence[str] = ()) -> Draft:
    """Run the config file that `--config=FILE[:variant]` names, and set overrides "a.b=value" over what it returns.

    Raises ConfigError when the file cannot be run; problems of overrides are in the draft.
    """
    path, variant = _split(argument)
    values = _run(path, variant, argument)
    if not isinstance(values, Mapping | config_dict.ConfigDict):
        raise ConfigError([_problem(argument, f"get_config returned {raw.shown(values)}, not a ConfigDict")])
    draft = apply(values, overrides)
    if not draft.raw.get("name"):
        stem = re.sub(r"[^A-Za-z0-9_.,=+-]", "_", f"{path.stem}-{variant}" if variant else path.stem)
        draft.raw["name"] = stem.lstrip(".,=+-") or "run"
    return draft


def make_cwd_importable() -> None:
    """Let the files of the current directory be imported, as `python -m` does and a console script does not."""
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.insert(0, os.getcwd())


def describe_failure(error: BaseException, path: str | Path | None = None) -> str:
    """An exception of a user's code in one line, with the file and line (the last one in `path`, if given)."""
    message = " ".join(_short(error).split())
    text = redact(f"{type(error).__name__}: {message}" if message else type(error).__name__)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} (line {error.lineno} of {error.filename})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    within = [
        frame for frame in frames if path is not None and os.path.abspath(frame.filename) == os.path.abspath(path)
    ]
    if frames := within or frames:
        return f"{text} (line {frames[-1].lineno} of {frames[-1].filename})"
    return text


def _run(path: Path, variant: str, argument: str) -> Any:
    """Call `get_config` of the file."""
    get_config = getattr(_execute(path, argument), "get_config", None)
    if not callable(get_config):
        raise ConfigError([_problem(argument, f'{path} defines no function get_config(variant="")')])
    try:
        takes_variant = bool(inspect.signature(get_config).parameters)
    except (TypeError, ValueError):
        takes_variant = True
    if variant and not takes_variant:
        fix = "Leave the variant away, or write get_config(variant)."
        raise ConfigError([_problem(argument, f"get_config of {path} takes no variant", fix)])
    try:
        return get_config(variant) if variant else get_config()
    except JaxtrainError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError([_problem(argument, describe_failure(error, path))]) from error


def _execute(path: Path, argument: str) -> types.ModuleType:
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        names = sorted(str(file) for file in folder.glob("*.py"))[:20]
        fix = f"There are {', '.join(names)}." if names else ""
        raise ConfigError([_problem(argument, f"{path} is no file" if path.name else "needs a file", fix)])
    make_cwd_importable()
    name = "jaxtrain_config_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError([_problem(argument, f"{path} is no Python file", "Its name must end in .py.")])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look classes of the file up there
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError([_problem(argument, describe_failure(error, path))]) from error
    finally:
        sys.dont_write_bytecode = writes_bytecode
    return module


def _split(argument: str) -> tuple[Path, str]:
    """The path and the variant of "FILE[:variant]"; a file may have a colon in its name."""
    path, colon, variant = argument.rpartition(":")
    return (Path(path), variant) if colon and not Path(argument).is_file() else (Path(argument), "")


def _problem(argument: str, allowed: str, fix: str = "") -> Problem:
    return Problem("", raw.shown(argument), allowed, fix)


def _short(error: BaseException) -> str:
    """The message; ml_collections prints the whole config into it."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    start, listing, _ = text.partition(" Other fields present:")
    if not listing:
        return text[:500]
    guess = re.search(r"Did you mean .*", text)
    return f"{start} {guess.group() if guess else ''}"


def _is_users(filename: str) -> bool:
    libraries = ("ml_collections", "jax", "flax", "optax")
    in_library = any(f"{os.sep}{name}{os.sep}" in filename for name in libraries)
    return not (filename.startswith("<") or in_library or filename == __file__)
