"""A config as plain data: for config.json, for its hash, and as the ConfigDict that config files start from."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import config_dict

from jaxtrain.config import schema
from jaxtrain.config.schema import Config

OBJECT = "<object of "  # how an object that was passed from Python is stored; it cannot be read back
_SCHEMA = {group.__module__ for group in (schema.Config, schema.Data, schema.Log)}  # the files it is made of


def to_dict(config: Any) -> dict[str, Any]:
    """`config`, or any part of it, as nested dicts, lists and scalars that JSON takes."""
    return {key: _jsonable(value) for key, value in _items(config)}


def to_raw(config: Any) -> dict[str, Any]:
    """As `to_dict`, but with objects passed from Python and flags' texts as they are: what `parse` reads."""
    return {key: _raw(value) for key, value in _items(config)}


def config_hash(config: Config) -> str:
    """A hash of every key but the name."""
    plain = to_dict(config)
    del plain["name"]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def flatten(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every (dotted key, value) that is not a group itself; an empty group is a value."""
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def default_config() -> config_dict.ConfigDict:
    """The defaults, to be changed by a config file.

    Locked, so that a misspelt key fails on its line; open where names and options are the user's: `evals`,
    `callbacks`, `sharding.rules` and the like, and every group with a `type`.
    """
    config = config_dict.ConfigDict(to_dict(Config()))
    config.lock()
    _open(config, to_dict(Config()))
    return config


def _open(config: config_dict.ConfigDict, defaults: Mapping[str, Any]) -> None:
    """Unlock the groups of named entries, which are empty, and those with a `type`."""
    for key, group in defaults.items():
        if not isinstance(group, dict):
            continue
        if "type" in group or not group:
            config[key].unlock()
        else:
            _open(config[key], group)
        if "type" in group:  # an object may stand where its import path would
            text = config[key].type
            del config[key].type
            config[key].type = config_dict.FieldReference(text, field_type=object)


def is_group(value: Any) -> bool:
    """Is it a group of the schema, such as a Spec?"""
    return dataclasses.is_dataclass(value) and type(value).__module__ in _SCHEMA


def _items(config: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "options":
            yield from value.items()
        else:
            yield field.name, value


def _raw(value: Any) -> Any:
    if is_group(value):
        return to_raw(value)
    if isinstance(value, Mapping):
        return {key: _raw(item) for key, item in value.items()}
    return type(value)(map(_raw, value)) if type(value) in (tuple, list) else value


def _jsonable(value: Any) -> Any:
    if is_group(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_jsonable(item) for item in value]
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{OBJECT}{named.__module__}:{named.__qualname__}>"
