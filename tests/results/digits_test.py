"""configs/digits.py reaches the result that README states, and an evaluation is the same at every batch size."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxtrain.assembly import assemble
from jaxtrain.config import load, parse
from jaxtrain.evaluate import Evaluator
from jaxtrain.workdir import Workdir
from jaxtrain.writers.jsonl import read_lines
from tests import runner

CONFIG = f"{runner.ROOT}/configs/digits.py"
MIN_ACCURACY = 0.97
NUM_TEST = 269


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The workdir of a finished run."""
    with runner.Runner(cwd=tmp_path_factory.mktemp("digits")) as cli:
        finished = cli.run(f"--config={CONFIG}", "--workdir=run", timeout_secs=600)
        assert finished.returncode == 0, finished.output
        yield Path(cli.cwd) / "run"


def test_the_accuracy_on_the_test_split_is_as_published(workdir: Path) -> None:
    assert json.loads((workdir / "status.json").read_text())["state"] == "finished"
    last = list(read_lines(workdir / "metrics.jsonl"))[-1]
    assert last["split"] == "test"
    assert last["accuracy"] >= MIN_ACCURACY


def test_the_test_split_is_read_once_after_the_last_step(workdir: Path) -> None:
    lines = list(read_lines(workdir / "metrics.jsonl"))
    splits = [line["split"] for line in lines]
    assert splits.count("test") == 1
    assert splits.count("validation") > 2
    assert lines[-1]["step"] == max(line["step"] for line in lines)


def test_the_checkpoint_evaluates_alike_at_every_batch_size(workdir: Path) -> None:
    sizes = (1, 7, 64, NUM_TEST)
    flags = [f"evals.at_{size}.{option}" for size in sizes for option in ("data.split=test", f"batch_size={size}")]
    experiment = assemble(parse(load(CONFIG, flags)).checked(), devices=jax.devices()[:1])
    with contextlib.closing(experiment.open_checkpoints(Workdir(workdir))) as checkpoints:
        found = checkpoints.newest()
        state = checkpoints.restore(found.step, experiment.abstract_state)
    evaluator = Evaluator(experiment.compile_eval_step)
    scalars = {
        evaluation.name: evaluator.run(evaluation, state.params, state.model_state, lambda: False)
        for evaluation in experiment.evaluations
    }
    published = [line for line in read_lines(workdir / "metrics.jsonl") if line["split"] == "test"][-1]
    for size in sizes:
        assert scalars[f"at_{size}"] == pytest.approx(scalars["test"], rel=1e-6)
        assert scalars[f"at_{size}"]["accuracy"] == published["accuracy"]
        assert scalars[f"at_{size}"]["loss"] == pytest.approx(
            published["loss"], rel=1e-4
        )  # compiled with other options
