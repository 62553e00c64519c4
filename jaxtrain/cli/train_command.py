"""`train`: train, resume or finish a run."""

from collections.abc import Sequence

from jaxtrain.errors import EXIT_OK, EXIT_RESUMABLE
from jaxtrain.preemption import Signals


def main(argv: Sequence[str]) -> int:
    """Return 0 when the run is finished, 75 when it stopped early and the same command resumes it."""
    signals = Signals()
    signals.install()  # before NumPy and JAX are imported: their threads then inherit the blocked signals

    from jaxtrain.cli import arguments

    given = arguments.read(argv, switches=("--fresh", "--allow_drift"))

    from jaxtrain.train import train  # takes seconds to import, so a misspelled flag is told before

    result = train(
        given.draft,
        given.workdir,
        fresh="--fresh" in given.switches,
        allow_drift="--allow_drift" in given.switches,
        signals=signals,
    )
    return EXIT_OK if result.status == "finished" else EXIT_RESUMABLE
