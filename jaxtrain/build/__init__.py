"""Turns specs of a config into objects: `"package.module:Name"` and the options that its signature takes."""

import functools
from collections.abc import Mapping
from typing import Any

from jaxtrain import redact
from jaxtrain.build.options import OPEN, RUNTIME_NAMES, check_options, type_options
from jaxtrain.build.targets import REQUIRED, import_target, signature
from jaxtrain.config import coerce
from jaxtrain.config.coerce import Text
from jaxtrain.config.loading import describe_failure
from jaxtrain.errors import ConfigError, JaxtrainError, Problem

LATE_NAME = "rngs"

__all__ = ["RUNTIME_NAMES", "build", "check_options", "import_target", "signature", "type_options"]


def build(spec: Any, where: str = "", /, **runtime: Any) -> Any:
    """Build what `spec` describes; specs among its options are built first. Any other object is returned as it is.

    where: the place of `spec` in the config, for messages. runtime: values that the trainer knows; one is passed where
    a signature names it and the options do not give it. `env:NAME` is resolved here. What needs `rngs`, an nnx module,
    is returned as a function of `rngs`: its parameters are made when the state is. Raises ConfigError.
    """
    if not isinstance(spec, OPEN):
        return spec
    typed, problems = type_options(spec, where, (*runtime, LATE_NAME))
    if problems:
        raise ConfigError(problems)
    if not isinstance(spec.type, str):
        return spec.type
    target = import_target(spec.type, where)
    if not callable(target):
        return target
    expected = signature(target).options
    arguments = {name: value for name, value in runtime.items() if name in expected}
    for name, value in typed.options.items():
        annotation = expected[name].annotation if name in expected else Any
        arguments[name] = _built(value, annotation, f"{where}.{name}".lstrip("."), runtime)
    if LATE_NAME in expected and expected[LATE_NAME].default is REQUIRED and LATE_NAME not in arguments:
        return functools.partial(target, **arguments)
    try:
        return target(**arguments)
    except JaxtrainError:
        raise
    except ValueError as error:
        refusal = f"it refuses its options: {describe_failure(error)}"
        raise ConfigError([Problem(f"{where}.type".lstrip("."), spec.type, refusal)]) from error


def _built(value: Any, annotation: Any, key: str, runtime: Mapping[str, Any]) -> Any:
    if isinstance(value, OPEN):
        return build(value, key, **runtime)
    if redact.is_reference(value):
        return _resolved(value, annotation, key)
    if isinstance(value, Mapping):
        return {name: _built(item, Any, f"{key}.{name}", runtime) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_built(item, Any, key, runtime) for item in value)
    return value


def _resolved(reference: str, annotation: Any, key: str) -> Any:
    """The secret, as text unless the signature wants another type."""
    secret = redact.resolve(reference, key)
    if not coerce.is_simple(annotation):
        return secret
    try:
        return coerce.coerce(Text(secret), annotation)
    except coerce.MismatchError as mismatch:
        raise ConfigError([Problem(key, reference, f"its value must be {mismatch.allowed}")]) from None
