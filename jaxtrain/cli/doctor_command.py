"""`doctor`: say whether this machine, and the run that is meant for it, are fit. Writes nothing that stays."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxtrain import doctor, files
from jaxtrain.cli import arguments
from jaxtrain.config import split_argv, unknown_flags
from jaxtrain.errors import EXIT_NO, EXIT_OK, ConfigError, Problem, StorageError
from jaxtrain.redact import redact

USAGE = """jaxtrain doctor [--config=FILE[:variant]] [--workdir=DIR] [--json=FILE] [--config.a.b=value ...]

Checks Python, packages, driver, CUDA, devices, links, environment, disk and clock, and with a config also its data,
secrets, coordinator, and room for its checkpoints. Prints a row for each: ok, warn, fail or n/a, what was found, and
what to do. Exit code 5 if any fails, else 0.

--json also writes {"healthy": bool, "findings": [{"check", "status", "found", "advice"}]}. --max_secs=S gives no check
more than S seconds; by itself each has its own limit, 15 to 300."""


def main(argv: Sequence[str]) -> int:
    """Print the table. Raises ConfigError for flags that are none, StorageError when --json cannot be written."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE)
        return EXIT_OK
    known = ("--workdir", "--json", "--max_secs")
    argument, changes, rest = split_argv(argv)
    taken, rest = arguments.take(rest, known)
    problems = unknown_flags(rest, known)
    max_secs = _seconds(taken["--max_secs"][-1]) if "--max_secs" in taken else None
    workdir = Path(taken["--workdir"][-1]) if "--workdir" in taken else None
    if changes and argument is None and workdir is None:
        problems.append(Problem("", "", "these keys change no config", "Write --config=FILE or --workdir=DIR too."))
    if problems:
        raise ConfigError(problems)
    flags = [*([] if argument is None else [f"--config={argument}"]), *(f"--config.{change}" for change in changes)]

    rows = []
    for name, finding in doctor.examine(doctor.Machine(flags, workdir, max_secs=max_secs)):
        rows.append({"check": name, **dataclasses.asdict(finding)})
        print(row(name, finding), flush=True)
    healthy = all(each["status"] != doctor.FAIL for each in rows)
    failed = [each["check"] for each in rows if each["status"] == doctor.FAIL]
    print(f"\n{'nothing fails' if healthy else 'failed: ' + ', '.join(failed)}")
    if "--json" in taken:
        path = Path(taken["--json"][-1])
        try:
            files.replace_json(path, {"healthy": healthy, "findings": rows})
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}.") from error
    return EXIT_OK if healthy else EXIT_NO


def row(name: str, finding: doctor.Finding) -> str:
    """One row of the table: the check, its status and what was found; below it what to do."""
    margin = " " * 21
    lines = [line.strip() for line in finding.found.splitlines()]
    lines += [f"-> {finding.advice}"] if finding.advice else []
    return redact(f"{name:<14} {finding.status:<5} " + f"\n{margin}".join(lines))


def _seconds(text: str) -> float:
    try:
        if (secs := float(text)) > 0:
            return secs
    except ValueError:
        pass
    raise ConfigError([Problem("--max_secs", text, "not a number of seconds above 0")])
