"""`export`: write a checkpoint's parameters as safetensors, and the run's config. Reads the run only."""

from collections.abc import Sequence
from pathlib import Path

from jaxtrain.cli import arguments
from jaxtrain.errors import EXIT_OK, ConfigError, Problem

USAGE = """jaxtrain export --workdir=DIR --out=DIR [--step=N|best|latest]

Writes model.safetensors and config.json into a new directory. Both are read back and compared bit for bit with the
checkpoint before the directory gets its name; if anything differs, nothing is left and the exit code is 5."""


def main(argv: Sequence[str]) -> int:
    """Export a run. Raises the named ends of `jaxtrain.export.export`."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE)
        return EXIT_OK
    given = arguments.read(argv, values=("--step", "--out"))
    problems = list(given.draft.problems)
    if any(argument.startswith("--config") for argument in argv):
        problems.append(Problem("", "", "an export has the config of its run", "Leave it away."))
    if not (out := given.text("--out", "")):
        problems.append(Problem("--out", "", "where to is needed", "Write --out=DIR."))
    if problems or given.workdir is None:
        raise ConfigError(problems)

    from jaxtrain.export import export  # takes seconds to import, so a misspelled flag is told before

    step = export(given.workdir, out, given.text("--step", "latest"))
    print(f"step {step} of {given.workdir} is in {Path(out).absolute()}, read back and compared")
    return EXIT_OK
