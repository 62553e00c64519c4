"""What a value of a config may be beyond its type: each limit says it, checks it and knows the nearest right value."""

import dataclasses
import difflib
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from jaxtrain import duration

MAX_COUNT = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Limit:
    """Stands in the annotation of a field: `Annotated[int, at_least(1)]`.

    nearest: gives the right value closest to a wrong one of the right type, or None where there is none.
    """

    allowed: str
    accepts: Callable[[Any], bool]
    nearest: Callable[[Any], Any]


def between(low: float, high: float) -> Limit:
    """Finite numbers from `low` to `high`."""
    span = f"{low:g} or more" if high >= MAX_COUNT else f"from {low} to {high}"
    words = f"must be finite and {span}" if isinstance(low, float) else f"must be {span}"

    def nearest(value: Any) -> Any:
        return None if not math.isfinite(value) else type(value)(min(max(value, low), high))

    return Limit(words, lambda value: math.isfinite(value) and low <= value <= high, nearest)


def at_least(low: float) -> Limit:
    """Finite numbers from `low` up."""
    return between(low, MAX_COUNT if isinstance(low, int) else sys.float_info.max)


def above(low: float) -> Limit:
    """Finite numbers greater than `low`."""
    return Limit(
        f"must be finite and more than {low:g}",
        lambda value: math.isfinite(value) and value > low,
        lambda value: low + 1.0 if math.isfinite(value) else None,
    )


def address() -> Limit:
    """Where something listens, "host:port", or ""."""

    def accepts(value: str) -> bool:
        host, _, port = value.rpartition(":")
        return value == "" or (re.fullmatch(r"[^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]", host) is not None and _is_port(port))

    def nearest(value: str) -> str | None:
        guess = f"{value.rpartition('://')[2].split('/')[0].partition(':')[0].strip()}:8476"
        return guess if accepts(guess) else None

    return Limit('must be an address as "node0:8476", or "" (what started the processes tells)', accepts, nearest)


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 0 < int(text) < 2**16


def fraction() -> Limit:
    """Numbers from 0 up to, but not including, 1."""
    low_enough = between(0.0, 1.0)
    return Limit(
        "must be 0 or more, and less than 1",
        lambda value: low_enough.accepts(value) and value < 1.0,
        lambda value: 0.999 if value >= 1.0 else low_enough.nearest(value),
    )


def or_none(limit: Limit) -> Limit:
    """What `limit` accepts, and none."""
    return Limit(f"{limit.allowed}, or none", lambda value: value is None or limit.accepts(value), limit.nearest)


def rest_or_count() -> Limit:
    """The size of a mesh axis: 1 or more, or -1."""
    return Limit(
        "must be 1 or more, or -1 for all devices that the other axes leave",
        lambda value: value == -1 or 1 <= value <= MAX_COUNT,
        lambda value: 1 if value == 0 else -1 if value < 0 else MAX_COUNT,
    )


def one_of(*choices: str) -> Limit:
    """One of a few words."""

    def nearest(value: str) -> str | None:
        return next(iter(difflib.get_close_matches(value, choices, 1, 0.3)), None)

    return Limit("must be one of " + ", ".join(choices), lambda value: value in choices, nearest)


def length(*, empty: str = "", time: bool = True) -> Limit:
    """A duration. `empty` says what "" means; without it a duration is required. `time`: may it be hours?"""
    words = f"must be {duration.ALLOWED}"
    if not time:
        words = words.removesuffix(' or "8 hours"') + ", and no time"
    if empty:
        words += f', or "" ({empty})'

    def accepts(value: str) -> bool:
        try:
            parsed = duration.Duration.parse(value)
        except ValueError:
            return False
        return bool(empty) if parsed is None else time or not parsed.is_time

    def nearest(value: str) -> str:
        if empty and not value.strip():
            return ""
        guess = duration.nearest(value)
        return guess if accepts(guess) else "1000 steps"

    return Limit(words, accepts, nearest)


def import_path(example: str, *, empty: str = "") -> Limit:
    """The import path of a target, or from Python the object itself. `empty` says what "" means, if it is allowed."""
    words = f'must be an import path "package.module:Name", such as "{example}"'
    if empty:
        words += f', or "" ({empty})'

    def accepts(value: Any) -> bool:
        if not isinstance(value, str):
            return value is not None and not isinstance(value, bool | int | float | bytes | tuple | list | set | dict)
        return bool(empty) if value == "" else _IMPORT_PATH.fullmatch(value) is not None

    def nearest(value: Any) -> str | None:
        text = value.strip() if isinstance(value, str) else ""
        if not text:
            return None
        module, _, name = text.rpartition(".")
        candidates = (text.replace("::", ":"), f"{module}:{name}", f"{example.partition(':')[0]}:{text}", example)
        return next(candidate for candidate in candidates if accepts(candidate))

    return Limit(words, accepts, nearest)


_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def words(allowed: str, pattern: str, *, reserved: Sequence[str] = ()) -> Limit:
    """Text of a pattern: `allowed` says it in words. Used for names that become parts of paths, keys and flags."""

    def accepts(value: str) -> bool:
        return re.fullmatch(pattern, value, re.ASCII) is not None and value not in reserved

    def nearest(value: str) -> str | None:
        kept = "_".join(re.findall(r"[a-z0-9]+", value.lower()))
        return next((name for name in (kept, f"{kept}_set") if accepts(name)), None)

    return Limit(f"must be {allowed}" + "".join(f', not "{word}"' for word in reserved), accepts, nearest)


def step_range() -> Limit:
    """Steps "START:STOP" without STOP, or "" for none."""

    def numbers(value: str) -> list[int]:
        return [int(digits) for digits in re.findall(r"[0-9]{1,15}", value)]

    def accepts(value: str) -> bool:
        if re.fullmatch(r"[0-9]{1,15}:[0-9]{1,16}", value) is None:
            return value == ""
        start, stop = map(int, value.split(":"))
        return 1 <= start < stop

    def nearest(value: str) -> str | None:
        start, *rest = [max(number, 1) for number in numbers(value)] or [0]
        return f"{start}:{max(start + 1, *rest)}" if start and rest else f"{start}:{start + 3}" if start else None

    return Limit('must be steps as "10:13", which are 10, 11 and 12, or "" (none)', accepts, nearest)


def regex(*, empty: str = "") -> Limit:
    """A regular expression. `empty` says what "" means; without it, "" is refused."""

    def accepts(value: str) -> bool:
        try:
            return bool(re.compile(value)) and (value != "" or bool(empty))
        except re.error:
            return False

    words = "must be a regular expression" + (f', or "" ({empty})' if empty else ", and not empty")
    return Limit(words, accepts, lambda value: re.escape(value) or None)


# Of what a config gives a name to.
Name = words("letters, digits, - and _", r"[A-Za-z0-9_-]+")
DEFAULT_GROUP = "default"  # of the parameters that no group of the config has
GroupName = words("letters, digits, - and _", r"[A-Za-z0-9_-]+", reserved=(DEFAULT_GROUP, "frozen", "undecayed"))
BestMetric = words('an evaluation and a number of its lines, such as "validation/loss"', r"([a-z0-9_]+/[^/\s]+)?")
EvalName = words("lower-case letters, digits and _", r"[a-z0-9_]+", reserved=("train",))

# Types that many keys have.
Count = Annotated[int, at_least(1)]
CountOrZero = Annotated[int, at_least(0)]
Size = Annotated[int, rest_or_count()]
Dtype = Annotated[str, one_of("float32", "bfloat16", "float16")]
