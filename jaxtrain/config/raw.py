"""What users hand in, made into plain nested dicts: foreign containers opened, literal secrets and oddities refused."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from jaxtrain import compat, redact
from jaxtrain.config import coerce, plain
from jaxtrain.errors import Problem

_MAX_DEPTH = 16  # groups in groups; deeper ones are loops or mistakes
_MAX_SHOWN = 120  # characters of a value that a message shows


def clean(source: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Nested dicts with text keys, tuples and scalars, without literal secrets; and the problems found on the way.

    Values of other types, such as a model built in Python, stay as they are.
    """
    problems: list[Problem] = []
    values = _clean(source, "", False, 0, problems)
    if isinstance(values, dict):
        return values, problems
    return {}, [*problems, Problem("", shown(source), "must be a ConfigDict or a mapping of keys to values")]


def clean_text(text: str, key: str) -> tuple[Any, list[Problem]]:
    """One text of a flag, as `clean` leaves it."""
    problems: list[Problem] = []
    return _clean_text(text, key, any(map(redact.is_secret_name, key.split("."))), problems), problems


def is_object(value: Any) -> bool:
    """Is it something built in Python, rather than data that a file could hold?"""
    return value is not None and not isinstance(
        value, numbers.Number | str | bytes | Sequence | Mapping | set | frozenset
    )


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, cut, printable everywhere, without secrets."""
    try:
        text = str(value) if isinstance(value, str | bool | int | float | None) else _shown_other(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        text = "a number of thousands of digits"
    text = (
        redact.redact(text).encode("ascii", "backslashreplace").decode() if not text.isascii() else redact.redact(text)
    )
    text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _shown_other(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(map(str, list(value)[:5])) + (", ...}" if len(value) > 5 else "}")
    if isinstance(value, tuple | list):
        items = [f"{type(item).__name__}" if isinstance(item, tuple | list) else shown(item) for item in value[:10]]
        return "(" + ", ".join(items) + (", ...)" if len(value) > 10 else ")")
    return f"an object of {type(value).__module__}.{type(value).__qualname__}"


def _clean(value: Any, key: str, is_secret: bool, depth: int, problems: list[Problem]) -> Any:
    """`is_secret`: a name on the way to this value says that it holds a secret."""
    if plain.is_group(value):
        value = plain.to_raw(value)
    if isinstance(value, Mapping | config_dict.ConfigDict):
        if depth == _MAX_DEPTH:
            problems.append(Problem(key, "{...}", f"groups may be nested {_MAX_DEPTH} deep"))
            return {}
        return _clean_group(value, key, is_secret, depth, problems)
    if isinstance(value, config_dict.FieldReference):
        return _clean(_dereferenced(value, key, problems), key, is_secret, depth, problems)
    if isinstance(value, tuple | list) and depth < _MAX_DEPTH:
        return tuple(_clean(item, key, is_secret, depth + 1, problems) for item in value)
    if isinstance(value, str):
        return _clean_text(value, key, is_secret, problems)
    if value is None or isinstance(value, bool):
        return value
    if is_secret and not is_object(value):
        # The words that stand for a number of thousands of digits are no secret.
        is_short = isinstance(value, int | float) and abs(value) < 2**1000
        return _refuse_secret(str(value) if is_short else "", key, problems)
    if isinstance(value, numbers.Real):
        try:
            return coerce.coerce(value, int if isinstance(value, numbers.Integral) else float)
        except coerce.MismatchError as mismatch:
            problems.append(Problem(key, shown(value), f"must be {mismatch.allowed}"))
            return mismatch.nearest
    if is_object(value):
        return value
    problems.append(Problem(key, shown(value), f"a config cannot hold a {type(value).__name__}"))
    return None


def _clean_group(group: Any, key: str, is_secret: bool, depth: int, problems: list[Problem]) -> dict[str, Any]:
    items = compat.items_as_set(group) if isinstance(group, config_dict.ConfigDict) else group.items()
    cleaned = {}
    for name, value in items:
        dotted = f"{key}.{name}" if key else str(name)
        if not isinstance(name, str) or not name or not name.isprintable():
            problems.append(Problem(key, shown(name), "keys must be text"))
        else:
            hidden = is_secret or redact.is_secret_name(name)
            cleaned[str(name)] = _clean(value, dotted, hidden, depth + 1, problems)
    return cleaned


def _clean_text(text: str, key: str, is_secret: bool, problems: list[Problem]) -> Any:
    if redact.is_reference(text) or not text:
        return text
    if is_secret:
        return _refuse_secret(text, key, problems)
    if redact.has_secret(text):
        allowed = "a URL with a user name, password or token in it is a secret and may not stand in a config"
        variable = _variable(key)
        fix = f"Put the whole URL into an environment variable and write --config.{key}=env:{variable}."
        problems.append(Problem(key, redact.redact(text), allowed, fix))
        return redact.redact(text)
    if text.startswith(plain.OBJECT):
        allowed = "was an object passed from Python and cannot be read back from config.json"
        problems.append(Problem(key, text, allowed, "Start the run from Python again, or name it by its import path."))
    return text


def _refuse_secret(text: str, key: str, problems: list[Problem]) -> str:
    redact.add(text)
    allowed = "a secret may not stand in a config"
    variable = _variable(key)
    fix = f"Put it into an environment variable and write --config.{key}=env:{variable}."
    problems.append(Problem(key, redact.HIDDEN, allowed, fix))
    return f"env:{variable}"


def _variable(key: str) -> str:
    name = "".join(character if character.isalnum() else "_" for character in key.rpartition(".")[2])
    return name.upper() or "SECRET"


def _dereferenced(reference: config_dict.FieldReference, key: str, problems: list[Problem]) -> Any:
    """The value of a reference, which may be missing or computed by any code of the user's."""
    try:
        return reference.get()
    except Exception as error:  # noqa: BLE001  what the user wrote is told as a problem, whatever it raises
        problems.append(Problem(key, "a reference", f"cannot be computed: {type(error).__name__}: {shown(str(error))}"))
        return None
