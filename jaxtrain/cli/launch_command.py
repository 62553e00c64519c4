"""`launch`: train with several processes of this machine."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxtrain import launch
from jaxtrain.cli import arguments
from jaxtrain.config import parse
from jaxtrain.config.modes import MODES
from jaxtrain.errors import EXIT_OK, ConfigError, Problem

USAGE = """jaxtrain launch --processes=N [--devices_per_process=M] [--max_restarts=R] --config=FILE [flags of train]

Starts N processes of one run here, shows their output with the number of each, and keeps it in logs/output-<i>.log of
the workdir. Signals go to all of them; if one fails, all end, and so does this with the code of the first that did.

--devices_per_process gives each so many GPUs, or so many simulated devices of the CPU. --max_restarts starts them
again, but for a refusal (exit code 2) or numbers that are not finite (3): so often in a row without a newer
checkpoint."""


def main(argv: Sequence[str]) -> int:
    """Return 0 when the run is finished, else the code of the process that failed first."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE)
        return EXIT_OK
    names = ("--processes", "--devices_per_process", "--max_restarts")
    taken, rest = arguments.take(argv, names)
    given = arguments.read(rest, switches=("--fresh", "--allow_drift", *MODES))  # a wrong flag is told once, here
    counts = {name: _count(name, taken[name][-1]) if name in taken else 0 for name in names}
    if counts["--processes"] < 1:
        raise ConfigError([Problem("--processes", "", "how many to start is needed", "Write --processes=2.")])
    workdir = given.workdir or Path("runs") / (parse(given.draft).config.name or "unnamed")
    group = launch.Group(
        rest,
        counts["--processes"],
        counts["--devices_per_process"],
        workdir / "logs",
        workdir / "checkpoints",
    )
    return launch.launch(group, counts["--max_restarts"], _say)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError([Problem(name, text, "must be a whole number, 0 or more", f"Write {name}=2.")])
    return int(text)
