"""`evaluate`: run the evaluations of a run's config on one of its checkpoints. Reads only."""

from collections.abc import Sequence
from pathlib import Path

from jaxtrain.cli import arguments
from jaxtrain.errors import EXIT_OK, ConfigError, Problem, StorageError

USAGE = """jaxtrain evaluate --workdir=DIR [--step=N|best|latest] [--json=FILE] [--config=FILE] [--config.a.b=value ...]

Runs every eval of the config on a checkpoint, on all examples, and prints their numbers: those of the run's own line at
that step. --json also writes {"step", "source": "params" or "ema", "evals": {name: {metric: number}}}."""


def main(argv: Sequence[str]) -> int:
    """Print the metrics of each eval. Raises ConfigError, WorkdirError or CheckpointError for what cannot be read."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE)
        return EXIT_OK
    given = arguments.read(argv, values=("--step", "--json"))

    from jaxtrain import compiling, files  # these take seconds to import, so a misspelled flag is told before
    from jaxtrain.assembly import assemble
    from jaxtrain.check import checked
    from jaxtrain.evaluate import Evaluator
    from jaxtrain.params import load
    from jaxtrain.writers.jsonl import plain

    config = checked(given.draft)
    compiling.enable_cache(config.compile_cache)
    experiment = assemble(config)
    if not experiment.evaluations:
        fix = "Add one, as --config.evals.validation.data.split=validation."
        raise ConfigError([Problem("evals", "{}", "there is nothing to evaluate", fix)])
    workdir = given.workdir or Path("runs") / config.name
    loaded = load(workdir, given.text("--step", "latest"), experiment.abstract_state)
    evaluator = Evaluator(experiment.compile_eval_step)
    evals = {}
    for evaluation in experiment.evaluations:
        scalars = evaluator.run(evaluation, loaded.params, loaded.model_state, lambda: False) or {}
        evals[evaluation.name] = {name: plain(value) for name, value in scalars.items()}
        print(f"step {loaded.step}  {evaluation.name}", *(f" {name} {value}" for name, value in scalars.items()))
    if path := given.text("--json", ""):
        try:
            files.replace_json(Path(path), {"step": loaded.step, "source": loaded.source, "evals": evals})
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}.") from error
    return EXIT_OK
