"""Lengths of a run and the times between its events, written with a unit: "5000 steps", "2.5 epochs", "8 hours"."""

import contextlib
import dataclasses
import difflib
import math
import re
from collections.abc import Iterator
from fractions import Fraction

from jaxtrain.errors import ConfigError, Problem

_COUNTS = ("steps", "epochs", "examples", "tokens")
_SECS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
UNITS = (*_COUNTS, *_SECS)
_NUMBER = r"\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d{1,2})?"
_PATTERN = re.compile(rf"({_NUMBER})\s*([a-z]+)", re.ASCII)
_MAX = 10**18  # larger counts cannot be positions of a run; keeps every product far from overflow

ALLOWED = (
    'a number above 0 and a unit, such as "5000 steps", "3 epochs", "200_000 examples", "1.5e9 tokens" or "8 hours"'
)


@dataclasses.dataclass(frozen=True)
class Duration:
    """An amount of one unit, kept as an exact rational number."""

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Duration | None":
        """Read a duration; "" is None. Raises ValueError."""
        if text == "":
            return None
        match = _PATTERN.fullmatch(text.strip())
        unit = match and _full_unit(match.group(2))
        if match is None or not unit:
            raise ValueError(f"{text!r} is not a duration: write {ALLOWED}")
        amount = Fraction(match.group(1).replace("_", ""))
        if not 0 < amount <= _MAX or (unit in ("steps", "examples", "tokens") and amount.denominator != 1):
            raise ValueError(f"{text!r} is not a duration: {unit} are counted in whole numbers from 1 to 1e18")
        return cls(amount, unit)

    @property
    def is_time(self) -> bool:
        return self.unit in _SECS

    @property
    def secs(self) -> float:
        """Seconds; only of a duration that is a time."""
        return float(self.amount * _SECS[self.unit])

    def exact_steps(
        self, batch_size: int, num_examples: int | None = None, tokens_per_example: int | None = None
    ) -> Fraction:
        """The length in steps, which need not be a whole number. Raises ValueError where the unit means nothing."""
        if self.is_time:
            raise ValueError(f'"{self}" is a time, which is no number of steps')
        if self.unit == "epochs" and not num_examples:
            raise ValueError(f'"{self}" needs data of known length')
        if self.unit == "tokens" and not tokens_per_example:
            raise ValueError(f'"{self}" needs a task that counts tokens')
        match self.unit:
            case "steps":
                return self.amount
            case "epochs":
                return self.amount * (num_examples or 0) / batch_size
            case "examples":
                return self.amount / batch_size
            case _:
                return self.amount / (batch_size * (tokens_per_example or 1))

    def steps(self, batch_size: int, num_examples: int | None = None, tokens_per_example: int | None = None) -> int:
        """The first step at which the duration is over. Raises ValueError where the unit means nothing."""
        return math.ceil(self.exact_steps(batch_size, num_examples, tokens_per_example))

    def meets(self, other: "Duration", batch_size: int) -> bool:
        """Is one of two periods a whole multiple of the other, so that when the rarer is due, the other is too?

        Steps and examples can be compared, and units of time; any other unit only with itself.
        """
        mine, theirs = self._measured(batch_size), other._measured(batch_size)
        if mine[1] != theirs[1]:
            return False
        ratio = mine[0] / theirs[0]
        return 1 in (ratio.numerator, ratio.denominator)

    def _measured(self, batch_size: int) -> tuple[Fraction, str]:
        if self.is_time:
            return self.amount * _SECS[self.unit], "seconds"
        return (self.amount * batch_size, "examples") if self.unit == "steps" else (self.amount, self.unit)

    def __str__(self) -> str:
        number = str(self.amount.numerator) if self.amount.denominator == 1 else repr(float(self.amount))
        return f"{number} {self.unit}"


class Every:
    """Says at which steps something recurring is due. None is never."""

    def __init__(
        self,
        duration: Duration | None,
        batch_size: int,
        num_examples: int | None = None,
        tokens_per_example: int | None = None,
    ):
        self.duration = duration
        self._secs = duration.secs if duration is not None and duration.is_time else 0.0
        self._steps = self._per_steps = 0  # a period of _steps / _per_steps steps
        if duration is not None and not duration.is_time:
            period = duration.exact_steps(batch_size, num_examples, tokens_per_example)
            self._steps, self._per_steps = period.numerator, period.denominator

    def due(self, step: int, secs: float = 0.0, previous_secs: float = 0.0) -> bool:
        """Is a multiple of the period crossed between step - 1 and step, or between previous_secs and secs?"""
        if self._steps:
            return step * self._per_steps // self._steps > (step - 1) * self._per_steps // self._steps
        if self._secs:
            return secs // self._secs > previous_secs // self._secs
        return False

    @property
    def is_time(self) -> bool:
        """Is it told by a clock?"""
        return bool(self._secs)

    def falls_on(self, other: "Every") -> bool:
        """Is `other` due wherever this is? Only where both are, and neither by time, and this is a multiple of it."""
        if not (self._steps and other._steps):
            return False
        return self._steps * other._per_steps % (self._per_steps * other._steps) == 0


def every_of(key: str, text: str, batch_size: int, num_examples: int, tokens_per_example: int | None) -> Every:
    """Read an `every` of a config. Raises ConfigError, which names its key, for a unit that means nothing here."""
    with _told_by(key, text):
        return Every(Duration.parse(text), batch_size, num_examples, tokens_per_example)


def steps_of(key: str, text: str, batch_size: int, num_examples: int, tokens_per_example: int | None) -> int | None:
    """Give the steps of a duration of a config; None for a time, or for none. Raises as `every_of` does."""
    duration = Duration.parse(text)
    if duration is None or duration.is_time:
        return None
    with _told_by(key, text):
        return duration.steps(batch_size, num_examples, tokens_per_example)


@contextlib.contextmanager
def _told_by(key: str, text: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError([Problem(key, text, str(error), "Use steps, epochs or examples.")]) from error


def nearest(text: str, default: str = "1000 steps") -> str:
    """The duration that `text` most likely meant."""
    number = re.search(_NUMBER, text)
    words = re.findall(r"[a-z]+", text.lower())
    units = difflib.get_close_matches(words[-1], UNITS, 1, 0.5) if words else []
    unit = units[0] if units else "steps"
    if number is None:
        return f"1 {unit}" if units else default
    value = float(number.group().replace("_", ""))  # infinite for very many digits
    for digits in (number.group(), str(math.ceil(value) if value < _MAX else _MAX)):
        try:
            Duration.parse(f"{digits} {unit}")
        except ValueError:
            continue
        return f"{digits} {unit}"
    return default


def _full_unit(word: str) -> str:
    """The unit that `word` names: "step" is "steps". Empty when there is none."""
    plural = word if word.endswith("s") else word + "s"
    return plural if plural in UNITS else ""
