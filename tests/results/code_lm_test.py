"""The default config reaches the result that README states. CI trains it once and names that run's workdir."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxtrain.writers.jsonl import read_lines
from tests import runner

WORKDIR = "JAXTRAIN_CODE_LM_WORKDIR"
MAX_LOSS = 1.95  # nats per byte


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[runner.Runner]:
    with runner.Runner(cwd=tmp_path_factory.mktemp("code_lm")) as started:
        yield started


@pytest.fixture(scope="module")
def workdir(cli: runner.Runner) -> Path:
    """The workdir of a finished run of configs/code_lm.py."""
    if WORKDIR in os.environ:
        return Path(os.environ[WORKDIR])
    finished = cli.run(f"--config={runner.ROOT}/configs/code_lm.py", "--workdir=run", timeout_secs=900)
    assert finished.returncode == 0, finished.output
    return Path(cli.cwd) / "run"


def test_the_loss_is_as_published(workdir: Path) -> None:
    assert json.loads((workdir / "status.json").read_text())["state"] == "finished"
    losses = [line["loss"] for line in read_lines(workdir / "metrics.jsonl") if line["split"] == "validation"]
    assert losses[-1] <= MAX_LOSS


def test_the_tables_stand_beside_the_loss(workdir: Path) -> None:
    log = (workdir / "logs" / "process-0.log").read_text()
    assert "nats per token; tables counted on the training split: order 1 " in log


def test_the_run_ends_with_a_sample(workdir: Path) -> None:
    log = (workdir / "logs" / "process-0.log").read_text()
    assert "step 200/200  sample:\ndef " in log


def test_a_second_call_does_nothing(cli: runner.Runner, workdir: Path) -> None:
    before = (workdir / "metrics.jsonl").read_bytes()
    again = cli.run(f"--config={runner.ROOT}/configs/code_lm.py", f"--workdir={workdir}")
    assert again.returncode == 0, again.output
    assert "nothing to do" in again.stdout
    assert (workdir / "metrics.jsonl").read_bytes() == before
