"""What a stored config means by an option that it leaves to its target."""

import json
from collections.abc import Mapping
from typing import Any

from jaxtrain.build.options import RUNTIME_NAMES
from jaxtrain.build.targets import REQUIRED, import_target, signature
from jaxtrain.config import coerce
from jaxtrain.config.drift import ABSENT
from jaxtrain.errors import ConfigError

_GIVEN_BY_TRAINER = frozenset(name for names in RUNTIME_NAMES.values() for name in names)


def default_of(config: Mapping[str, Any], key: str) -> Any:
    """Give the default of a dotted key in a config of plain data, or ABSENT where its target's signature gives none.

    A default of None is none: often it leaves the choice to somebody else, and writing it down changes that.
    """
    *path, name = key.split(".")
    group: Any = config
    for part in path:
        group = group.get(part) if isinstance(group, Mapping) else None
    path_of_target = group.get("type") if isinstance(group, Mapping) else None
    if not isinstance(path_of_target, str) or not path_of_target or name in _GIVEN_BY_TRAINER:
        return ABSENT
    try:
        target = import_target(path_of_target)
    except ConfigError:
        return ABSENT  # an object that was passed from Python, or code that is gone
    option = signature(target).options.get(name) if callable(target) else None
    if option is None or option.default is REQUIRED or option.default is None:
        return ABSENT
    try:
        default = coerce.coerce(option.default, option.annotation)  # as an option that is given is stored
        json.dumps(default)
    except (coerce.MismatchError, TypeError, ValueError):
        return ABSENT
    return default
