"""The arguments that every subcommand takes: a config with its overrides, or the workdir of a run that has one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxtrain.config import Draft, overrides, split_argv, unknown_flags
from jaxtrain.config.loading import load
from jaxtrain.errors import ConfigError, Problem, WorkdirError
from jaxtrain.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Arguments:
    """draft: the config before validation, with what is wrong with the flags.   switches: "--fresh" and the like."""

    draft: Draft
    workdir: Path | None
    switches: frozenset[str]


def read(argv: Sequence[str], switches: Sequence[str] = ()) -> Arguments:
    """Read `--config=F`, `--config.a.b=v`, `--workdir=D` and the named switches, in any order.

    With a workdir alone, the config is the one stored there. Raises ConfigError or WorkdirError.
    """
    argument, changes, rest = split_argv(argv)
    workdir, rest = _take_workdir(rest)
    given = frozenset(rest) & frozenset(switches)
    problems = unknown_flags([flag for flag in rest if flag not in given], ["--workdir", *switches])
    if argument is not None:
        draft = load(argument, changes)
    elif workdir is not None:
        draft = overrides.apply(_stored_config(workdir), changes)
    else:
        needed = Problem("", "", "which experiment to run is needed", "Write --config=configs/code_lm.py.")
        raise ConfigError([needed, *problems])
    return Arguments(dataclasses.replace(draft, problems=(*draft.problems, *problems)), workdir, given)


def _take_workdir(rest: Sequence[str]) -> tuple[Path | None, list[str]]:
    workdir, others = None, []
    waiting = iter(rest)
    for flag in waiting:
        name, equals, value = flag.partition("=")
        if name == "--workdir":
            workdir = Path(value if equals else next(waiting, ""))
        else:
            others.append(flag)
    return workdir, others


def _stored_config(workdir: Path) -> dict:
    config = Workdir(workdir, create=False).read_config()
    if config is None:
        raise WorkdirError(f"There is no config.json in {workdir}. Say what to run with --config=F.")
    return config
