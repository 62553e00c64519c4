"""Reads a value as an annotated type says: texts of flags are converted, values of Python are only checked."""

import ast
import collections.abc
import contextlib
import difflib
import enum
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

NOTHING = object()  # no value that would be right is known
_MAX_INT = 2**63  # whole numbers beyond 64 bits are typing errors, and no file format of ours holds them


class Text(str):
    """A value as it was typed behind a flag, before anything is known about its type."""


class MismatchError(ValueError):
    """A value is not of its type. `allowed` says what is, `nearest` is the likeliest right value or NOTHING."""

    def __init__(self, allowed: str, nearest: Any = NOTHING):
        super().__init__(f"must be {allowed}")
        self.allowed = allowed
        self.nearest = nearest


def coerce(value: Any, annotation: Any) -> Any:
    """Return `value` as `annotation` wants it. Raises MismatchError.

    Types this function does not know take every value; a Text becomes the Python literal it spells, or stays a string.
    """
    annotation = _bare(annotation)
    if reader := _READERS.get(annotation):
        return reader(value)
    origin = typing.get_origin(annotation) or annotation
    if origin in (Union, types.UnionType):
        return _read_union(value, typing.get_args(annotation))
    if origin is Literal:
        return _read_choice(value, {str(choice): choice for choice in typing.get_args(annotation)})
    if inspect.isclass(origin):
        if issubclass(origin, enum.Enum):
            return value if isinstance(value, origin) else _read_choice(value, dict(origin.__members__))
        if origin in _SEQUENCES:
            return _read_sequence(value, origin, typing.get_args(annotation))
        if origin in _MAPPINGS:
            return _read_mapping(value, typing.get_args(annotation))
    return literal(value) if isinstance(value, Text) else value


def literal(text: str) -> Any:
    """The Python literal that `text` spells ("0.9", "(1, 2)", "none", "true"), else `text` as a plain string."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return str(text)


def describe(annotation: Any) -> str:
    """A type in the words of a message."""
    annotation = _bare(annotation)
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(arg) for arg in args))
    if origin in _SEQUENCES:
        kinds = [describe(arg) for arg in args if arg is not Ellipsis]
        if origin is not tuple or Ellipsis in args:
            return "a list with commas, each " + kinds[0] if kinds else "a list with commas"
        return f"{len(kinds)} values: {', '.join(kinds)}"
    return getattr(annotation, "__name__", None) or str(annotation)


def _bare(annotation: Any) -> Any:
    """`annotation` without the wrappers that do not change its values: Annotated, NewType, type aliases."""
    while True:
        if typing.get_origin(annotation) in (Annotated, typing.Final, typing.Required, typing.NotRequired):
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif isinstance(annotation, collections.abc.Hashable):
            return annotation
        else:
            return Any


def _read_bool(value: Any) -> bool:
    if isinstance(value, Text):
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif isinstance(value, bool):
        return value
    guesses = {"1": True, "yes": True, "on": True, "t": True, "0": False, "no": False, "off": False, "f": False}
    raise MismatchError("true or false", guesses.get(str(value).lower()[:9], NOTHING) if _is_plain(value) else NOTHING)


def _read_int(value: Any) -> int:
    try:
        if not (isinstance(value, Text) or _is_number(value, numbers.Integral)):
            raise ValueError
        number = int(value)
    except ValueError:
        raise MismatchError("a whole number", _rounded(value)) from None
    if abs(number) >= _MAX_INT:
        raise MismatchError("a whole number of at most 64 bits", _MAX_INT - 1 if number > 0 else 1 - _MAX_INT)
    return number


def _read_float(value: Any) -> float:
    if isinstance(value, Text):
        number = _number_in(value)
        if number is not NOTHING and "," not in value:
            return float(number)
    elif _is_number(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            raise MismatchError("a number that a float holds exactly") from None
        if isinstance(value, numbers.Integral) and int(number) != int(value):
            raise MismatchError("a number that a float holds exactly", number)
        return number
    raise MismatchError("a number", _number_in(value))


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise MismatchError("text", str(value) if _is_plain(value) and isinstance(value, bool | int | float) else NOTHING)


def _read_none(value: Any) -> None:
    if value is None or (isinstance(value, Text) and value.lower() == "none"):
        return
    raise MismatchError("none")


def _read_choice(value: Any, choices: Mapping[str, Any]) -> Any:
    for name, choice in choices.items():
        if name == str(value) if isinstance(value, Text) else (type(choice) is type(value) and choice == value):
            return choice
    close = difflib.get_close_matches(str(value)[:100], choices, 1, 0.3) if _is_plain(value) else []
    raise MismatchError("one of " + ", ".join(choices), choices[close[0]] if close else NOTHING)


def _read_union(value: Any, members: tuple[Any, ...]) -> Any:
    """Try the members; text is the last resort of a flag, since it accepts everything."""
    members = tuple(sorted(map(_bare, members), key=lambda member: member is str))
    simple = [member for member in members if is_simple(member)]
    failures = []
    for member in simple:
        try:
            return coerce(value, member)
        except MismatchError as mismatch:
            failures.append(mismatch)
    refuses_text = any(member not in (type(None),) for member in simple)
    if len(simple) < len(members) and not (refuses_text and _is_plain(value)):
        return literal(value) if isinstance(value, Text) else value
    nearest = next((failure.nearest for failure in failures if failure.nearest is not NOTHING), NOTHING)
    raise MismatchError(" or ".join(dict.fromkeys(failure.allowed for failure in failures)), nearest)


def _read_sequence(value: Any, origin: Any, kinds: tuple[Any, ...]) -> Any:
    allowed = "a list with commas"
    items = _split(value) if isinstance(value, Text) else value
    if not isinstance(items, tuple | list):
        alone = NOTHING
        with contextlib.suppress(MismatchError):
            alone = _read_sequence((value,), tuple, kinds) if _is_plain(value) else NOTHING
        raise MismatchError(allowed, alone)
    is_fixed = origin is tuple and bool(kinds) and Ellipsis not in kinds
    if is_fixed and len(items) != len(kinds):
        raise MismatchError(f"a list of {len(kinds)} values, not {len(items)}", NOTHING)
    each = kinds if is_fixed else (kinds[0] if kinds else Any,) * len(items)
    read, nearest = [], list(items)
    failure = None
    for index, (item, kind) in enumerate(zip(items, each, strict=True)):
        try:
            read.append(coerce(item, kind))
        except MismatchError as mismatch:
            failure = failure or f"{allowed}, whose item {index} is {mismatch.allowed}"
            nearest[index] = mismatch.nearest
    if failure:
        raise MismatchError(failure, NOTHING if NOTHING in nearest else tuple(nearest))
    return read if origin is list else tuple(read)


def _read_mapping(value: Any, kinds: tuple[Any, ...]) -> Any:
    items = literal(value) if isinstance(value, Text) else value
    if not isinstance(items, Mapping):
        raise MismatchError('a mapping such as {"name": value}')
    key_kind, value_kind = kinds if len(kinds) == 2 else (Any, Any)
    read = {}
    for key, item in items.items():
        try:
            read[coerce(Text(key) if isinstance(key, str) else key, key_kind)] = coerce(item, value_kind)
        except MismatchError as mismatch:
            raise MismatchError(f"a mapping, whose {str(key)[:50]!r} is {mismatch.allowed}") from None
    return read


def _split(text: Text) -> Any:
    """The items of "1,2", "(1, 2)", "a," or "[]"; `text` itself when it holds no list."""
    value = literal(text)
    if not isinstance(value, str):
        return value
    inner = text.strip()
    if inner[:1] + inner[-1:] in ("()", "[]"):
        inner = inner[1:-1]
    return [Text(item.strip()) for item in inner.removesuffix(",").split(",")] if "," in inner else text


def is_simple(annotation: Any) -> bool:
    """Does `coerce` know the type, so that it refuses what is not of it?"""
    annotation = _bare(annotation)
    origin = typing.get_origin(annotation) or annotation
    is_enum = inspect.isclass(origin) and issubclass(origin, enum.Enum)
    known = (*_SEQUENCES, *_MAPPINGS, Literal, Union, types.UnionType)
    return (annotation in _READERS and annotation is not Any) or origin in known or is_enum


def _is_plain(value: Any) -> bool:
    """Can the value be shown in a suggestion? Whole numbers of thousands of digits cannot."""
    if isinstance(value, int) and abs(value) >= _MAX_INT:
        return False
    return value is None or isinstance(value, bool | int | float | str)


def _is_number(value: Any, kind: type) -> bool:
    """Numpy's numbers count; Python's bool, a subclass of int, does not."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _number_in(value: Any) -> Any:
    try:
        return float(str(value).replace(",", "").replace(" ", "")) if isinstance(value, str) else NOTHING
    except ValueError:
        return NOTHING


def _rounded(value: Any) -> Any:
    number = _number_in(value) if isinstance(value, str) else value
    if isinstance(number, float) and math.isfinite(number) and abs(number) < _MAX_INT:
        return round(number)
    return NOTHING


_WORDS = {"none": None, "true": True, "false": False}
_READERS: dict[Any, Callable[[Any], Any]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
    type(None): _read_none,
    None: _read_none,
}
_SEQUENCES = (tuple, list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "none",
    Any: "any value",
    inspect.Parameter.empty: "any value",
}
