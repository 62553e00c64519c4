"""Exit codes and the exceptions that carry them: one class for each way a run can end."""

import dataclasses
from collections.abc import Sequence
from typing import Any

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_REFUSED = 2
EXIT_NONFINITE = 3
EXIT_STORAGE = 4
EXIT_NO = 5
EXIT_RESUMABLE = 75


class JaxtrainError(Exception):
    """A named end of a command. `exit_code` is what the process returns; codes other than 1 show no traceback."""

    exit_code = EXIT_ERROR


class RefusedError(JaxtrainError, ValueError):
    """Something the user wrote, or the place it runs in, cannot work. Nothing was written over."""

    exit_code = EXIT_REFUSED


class DataError(RefusedError):
    """A data source is missing, damaged or not what the config says."""


class WorkdirError(RefusedError):
    """The workdir cannot be used, or another run uses it."""


class CheckpointError(RefusedError):
    """No checkpoint can be restored into the state that the config describes."""


class ExampleError(JaxtrainError):
    """One example could not be read or transformed. The message names its number."""


class NonFiniteError(JaxtrainError):
    """The loss or the gradients stopped being finite."""

    exit_code = EXIT_NONFINITE


class OutOfMemoryError(JaxtrainError):
    """A device had no room for the run. The message says what to try."""


class StorageError(JaxtrainError):
    """A checkpoint could not be written."""

    exit_code = EXIT_STORAGE


class StoppedError(JaxtrainError):
    """The run stopped early; the same command resumes it."""

    exit_code = EXIT_RESUMABLE


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing wrong with a config.

    `key` is dotted, as the flag spells it behind `--config.` ("" is `--config` itself; another flag is written with its
    dashes); `value` is what was given; `allowed` says what is; `fix` says what to write instead (may be empty).
    """

    key: str
    value: Any
    allowed: str
    fix: str = ""

    def __str__(self) -> str:
        flag = self.key if self.key.startswith("--") else f"--config.{self.key}".rstrip(".")
        text = f"{flag}={self.value}: {self.allowed}."
        return f"{text} {self.fix}" if self.fix else text


class ConfigError(RefusedError):
    """Every problem of a config, told in one go."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        super().__init__(f"The config has {count}:\n" + "\n".join(f"  {problem}" for problem in self.problems))
