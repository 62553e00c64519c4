"""`train`: train, resume or finish a run."""

from collections.abc import Sequence

from jaxtrain.cli import arguments
from jaxtrain.errors import EXIT_OK, EXIT_RESUMABLE
from jaxtrain.preemption import Signals


def main(argv: Sequence[str]) -> int:
    """Returns 0 when the run is finished, 75 when it stopped early and the same command resumes it."""
    signals = Signals()
    signals.install()  # before JAX is imported: its threads inherit the blocked signals
    given = arguments.read(argv, switches=("--fresh", "--allow_drift"))

    from jaxtrain.train import train  # takes seconds, so a flag misspelled is told before

    result = train(
        given.draft,
        given.workdir,
        fresh="--fresh" in given.switches,
        allow_drift="--allow_drift" in given.switches,
        signals=signals,
    )
    return EXIT_OK if result.status == "finished" else EXIT_RESUMABLE
