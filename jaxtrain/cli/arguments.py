"""The arguments that every subcommand takes: a config with its overrides, or the workdir of a run that has one."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtrain.config import Draft, modes, overrides, split_argv, unknown_flags
from jaxtrain.config.loading import load
from jaxtrain.errors import ConfigError, Problem, WorkdirError
from jaxtrain.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Arguments:
    """draft: the config before validation, with what is wrong with the flags.   switches: "--fresh" and the like.

    values: "--step" and the like -> what was given, in order.
    """

    draft: Draft
    workdir: Path | None
    switches: frozenset[str]
    values: Mapping[str, Sequence[str]]

    def text(self, flag: str, default: str) -> str:
        """Give the last value of a flag."""
        return [default, *self.values.get(flag, ())][-1]

    def number(self, flag: str, default: float) -> float:
        """Give the last value of a flag as a number of the default's type. Raises ConfigError."""
        text, kind = self.text(flag, str(default)), type(default)
        try:
            return kind(text)
        except ValueError:
            allowed = "not a whole number" if kind is int else "not a number"
            raise ConfigError([Problem(flag, text, allowed, f"The default is {default}.")]) from None


def read(argv: Sequence[str], switches: Sequence[str] = (), values: Sequence[str] = ()) -> Arguments:
    """Read `--config=F`, `--config.a.b=v`, `--workdir=D`, the named switches and flags with values, in any order.

    With a workdir alone, the config is the one stored there. Switches that are modes (config/modes.py) are applied to
    the config and to the workdir. Raises ConfigError or WorkdirError.
    """
    argument, changes, rest = split_argv(argv)
    taken, rest = take(rest, ["--workdir", *values])
    workdir = Path(taken.pop("--workdir")[-1]) if "--workdir" in taken else None
    given = frozenset(rest) & frozenset(switches)
    problems = unknown_flags([flag for flag in rest if flag not in given], ["--workdir", *values, *switches])
    if argument is not None:
        draft = load(argument, changes)
    elif workdir is not None:
        draft = overrides.apply(_stored_config(workdir), changes)
    else:
        fix = "Write --config=FILE.py, or --workdir=DIR of a run that has one."
        needed = Problem("", "", "a config is needed", fix)
        raise ConfigError([needed, *problems])
    for mode in (mode for mode in modes.MODES if mode in given):
        draft = modes.apply(draft, mode)
        workdir = workdir and modes.workdir_beside(workdir, mode)
    return Arguments(dataclasses.replace(draft, problems=(*draft.problems, *problems)), workdir, given, taken)


def take(rest: Sequence[str], names: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Take `--name=value` and `--name value` of these names out of the arguments; gives (values, the others)."""
    taken: dict[str, list[str]] = {}
    others = []
    waiting = iter(rest)
    for flag in waiting:
        name, equals, value = flag.partition("=")
        if name not in names:
            others.append(flag)
        elif not equals and (following := next(waiting, None)) is None:
            raise ConfigError([Problem(name, "", "needs a value", f"Write {name}=VALUE.")])
        else:
            taken.setdefault(name, []).append(value if equals else following or "")
    return taken, others


def _stored_config(workdir: Path) -> dict:
    config = Workdir(workdir, create=False).read_config()
    if config is None:
        raise WorkdirError(f"There is no config.json in {workdir}. Say what to run with --config=F.")
    return config
