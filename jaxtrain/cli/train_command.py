"""`train`: train, resume or finish a run."""

from collections.abc import Sequence

from jaxtrain.errors import EXIT_OK, EXIT_RESUMABLE
from jaxtrain.preemption import Signals

USAGE = """jaxtrain train --config=FILE[:variant] [--workdir=DIR] [--fresh] [--allow_drift] [--config.a.b=value ...]
jaxtrain train --config=FILE[:variant] MODE ... [--config.a.b=value ...]

Trains, resumes or finishes the run in DIR, by default runs/NAME. --workdir alone takes the config of its run. --fresh
sets aside what DIR holds and begins; --allow_drift resumes although the config is another run's.

A mode sets some keys over the config file; flags win over it. Its run begins anew each time, in a directory of its own
beside DIR, such as runs/NAME-smoke.
"""


def main(argv: Sequence[str]) -> int:
    """Return 0 when the run is finished, 75 when it stopped early and the same command resumes it."""
    if any(argument in ("-h", "--help") for argument in argv):
        from jaxtrain.config.modes import MODES

        print(USAGE, *(f"  {name:<12} {mode.text}" for name, mode in MODES.items()), sep="\n")
        return EXIT_OK
    signals = Signals()
    signals.install()  # before NumPy and JAX are imported: their threads then inherit the blocked signals

    from jaxtrain.cli import arguments
    from jaxtrain.config.modes import MODES

    given = arguments.read(argv, switches=("--fresh", "--allow_drift", *MODES))

    from jaxtrain.distributed import join  # these take seconds to import, so a misspelled flag is told before
    from jaxtrain.train import train

    try:
        result = train(
            given.draft,
            given.workdir,
            fresh=bool({"--fresh", *MODES} & given.switches),
            allow_drift="--allow_drift" in given.switches,
            signals=signals,
        )
    finally:
        join.leave()
    return EXIT_OK if result.status == "finished" else EXIT_RESUMABLE
