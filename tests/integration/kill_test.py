"""Runs that are killed from outside, and resumed by the same command: bit for bit what an uninterrupted run gives."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from jaxtrain import compat
from jaxtrain.checkpoint import manifest, restore
from tests import runner
from tests.integration.examples import HOLD
from tests.integration.outcomes import bits, lines, without_times
from tests.integration.parts import told_path

NUM_STEPS = 24
PATIENCE_SECS = 300.0  # a start takes seconds, on a loaded machine many times as long
VARIANTS = {"nnx": 1, "linen": 2}  # and the devices of each
Outcome = tuple[list[dict[str, Any]], dict[str, tuple]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Iterator[Callable[[str], Outcome]]:
    """Give what a run of a variant leaves when nothing happens to it."""
    known: dict[str, Outcome] = {}
    with runner.Runner(cwd=tmp_path_factory.mktemp("uninterrupted")) as cli:

        def get(variant: str) -> Outcome:
            if variant not in known:
                run_to_end(cli, variant, cli.cwd / variant)
                known[variant] = outcome(cli.cwd / variant)
            return known[variant]

        yield get


def start(cli, variant: str, workdir: Path, num_workers: int = 0, **env: str) -> runner.Run:
    flags = [f"--workdir={workdir}", f"--config.data.num_workers={num_workers}"]
    config = f"--config={Path(__file__).with_name('kill_config.py')}:{variant}"
    return cli.start(config, *flags, env=env, num_devices=VARIANTS[variant])


def run_to_end(cli, variant: str, workdir: Path, num_workers: int = 0, **env: str) -> runner.Finished:
    finished = start(cli, variant, workdir, num_workers, **env).finish(PATIENCE_SECS)
    assert finished.returncode == 0, finished.output
    return finished


def outcome(workdir: Path) -> Outcome:
    """Give the lines of metrics.jsonl without what no two runs share, and each leaf of the last checkpoint as bytes."""
    path = workdir / "checkpoints" / str(committed(workdir)[-1])
    saved = manifest.read(path)
    key_dtype = jax.random.key(0).dtype
    abstract = {
        name: jax.ShapeDtypeStruct(leaf.shape, key_dtype if leaf.dtype == str(key_dtype) else leaf.dtype)
        for name, leaf in saved.leaves.items()
    }
    leaves = {name: bits(leaf) for name, leaf in restore.read_state(path, saved, abstract).items()}
    return without_times(lines(workdir)), leaves


def assert_equal(got: Outcome, wanted: Outcome) -> None:
    """Compare the lines first: they say at which step two runs part."""
    for got_line, wanted_line in zip(got[0], wanted[0], strict=False):
        assert got_line == wanted_line
    assert len(got[0]) == len(wanted[0])
    assert got[1].keys() == wanted[1].keys()
    assert [name for name in wanted[1] if name.startswith("ema/")]  # the moving average is among what is compared
    assert [name for name in wanted[1] if got[1][name] != wanted[1][name]] == []


def committed(workdir: Path) -> list[int]:
    directory = workdir / "checkpoints"
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    return sorted(int(name) for name in names if name.isdecimal())


def saves_in_flight(workdir: Path) -> list[int]:
    found = (workdir / "checkpoints").glob(f"*{compat.ORBAX_TMP_SUFFIX}")
    return [int(path.name.removesuffix(compat.ORBAX_TMP_SUFFIX)) for path in found]


def told(workdir: Path) -> int:
    """Give the step that the run has made last, 0 before the first."""
    return int(told_path(workdir).read_text()) if told_path(workdir).exists() else 0


def kill_at(run: runner.Run, workdir: Path, step: int) -> None:
    """SIGKILL as soon as `step` has been made, wherever the run is then."""
    run.wait_for(lambda: told(workdir) >= step, PATIENCE_SECS, 0.001)
    kill(run)


def kill_in_save(run: runner.Run, workdir: Path, step: int) -> None:
    """SIGKILL while the checkpoint of `step`, or the next one that can be caught, is being written."""
    while True:
        run.wait_for(lambda: any(s >= step for s in saves_in_flight(workdir)), PATIENCE_SECS, 0.001)
        run.send(signal.SIGSTOP)  # so that it cannot commit between the look and the kill
        run.wait_for(lambda: psutil.Process(run.pid).status() == psutil.STATUS_STOPPED, PATIENCE_SECS, 0.001)
        if saves_in_flight(workdir):
            break
        run.send(signal.SIGCONT)
    kill(run)
    assert saves_in_flight(workdir), "what the kill interrupted"


def kill(run: runner.Run) -> None:
    assert run.kill().returncode == -signal.SIGKILL
    _, orphans = psutil.wait_procs(run.members(), timeout=30)
    assert orphans == []


def resume_and_compare(cli, variant: str, workdir: Path, wanted: Outcome, num_workers: int = 0) -> None:
    expected_start = max([0, *committed(workdir)])
    run_to_end(cli, variant, workdir, num_workers)
    assert launches(workdir)[-1] == expected_start  # else it may have been equal only because all was done again
    assert saves_in_flight(workdir) == []
    assert_equal(outcome(workdir), wanted)


def launches(workdir: Path) -> list[int]:
    """Give the step at which each launch began."""
    return [entry["step"] for entry in json.loads((workdir / "manifest.json").read_text())]


# Before the first checkpoint, between two, at one, at an evaluation, in the third epoch; with worker processes before
# the kill and with none or others after it, which must not matter.
@pytest.mark.parametrize(
    ("variant", "step", "workers", "workers_after"),
    [("nnx", 2, 2, 0), ("nnx", 10, 0, 2), ("nnx", 20, 0, 0), ("linen", 4, 0, 0), ("linen", 13, 0, 0)],
)
def test_a_run_killed_between_saves_ends_like_an_uninterrupted_one(
    cli, tmp_path, uninterrupted, variant, step, workers, workers_after
):
    kill_at(start(cli, variant, tmp_path / "w", workers), tmp_path / "w", step)
    assert step <= told(tmp_path / "w") < NUM_STEPS
    resume_and_compare(cli, variant, tmp_path / "w", uninterrupted(variant), workers_after)


@pytest.mark.parametrize(
    ("variant", "step", "workers", "workers_after"),
    [("nnx", 6, 1, 0), ("nnx", 15, 0, 0), ("linen", 9, 0, 0), ("linen", NUM_STEPS, 0, 0)],
)
def test_a_run_killed_in_a_save_ends_like_an_uninterrupted_one(
    cli, tmp_path, uninterrupted, variant, step, workers, workers_after
):
    kill_in_save(start(cli, variant, tmp_path / "w", workers), tmp_path / "w", step)
    resume_and_compare(cli, variant, tmp_path / "w", uninterrupted(variant), workers_after)


def test_a_run_killed_three_times_ends_like_an_uninterrupted_one(cli, tmp_path, uninterrupted):
    workdir = tmp_path / "w"
    kill_at(start(cli, "nnx", workdir, num_workers=1), workdir, 5)
    told_path(workdir).unlink()
    kill_in_save(start(cli, "nnx", workdir), workdir, 12)
    told_path(workdir).unlink()
    kill_at(start(cli, "nnx", workdir), workdir, 19)
    resume_and_compare(cli, "nnx", workdir, uninterrupted("nnx"))
    assert len(launches(workdir)) == 4
    assert launches(workdir) == sorted(launches(workdir))


def test_a_run_stopped_by_sigterm_ends_like_an_uninterrupted_one(cli, tmp_path, uninterrupted):
    workdir = tmp_path / "w"
    run = start(cli, "nnx", workdir)
    run.wait_for(lambda: told(workdir) >= 7, PATIENCE_SECS, 0.001)
    run.send(signal.SIGTERM)
    finished = run.finish(PATIENCE_SECS)
    assert finished.returncode == 75, finished.output
    assert committed(workdir)[-1] == told(workdir) < NUM_STEPS
    assert json.loads((workdir / "status.json").read_text())["state"] == "preempted"
    resume_and_compare(cli, "nnx", workdir, uninterrupted("nnx"))


def test_a_run_killed_in_its_last_evaluation_only_evaluates_and_then_does_nothing(cli, tmp_path, uninterrupted):
    workdir = tmp_path / "w"
    run = start(cli, "linen", workdir, **{HOLD: "1"})
    run.wait_for(lambda: NUM_STEPS in committed(workdir), PATIENCE_SECS)
    kill(run)
    assert '"test"' not in (workdir / "metrics.jsonl").read_text()
    told_path(workdir).unlink(missing_ok=True)
    before = manifest.read(workdir / "checkpoints" / str(NUM_STEPS))

    resume_and_compare(cli, "linen", workdir, uninterrupted("linen"))
    assert told(workdir) == 0, "no step was made"
    assert manifest.read(workdir / "checkpoints" / str(NUM_STEPS)) == before

    contents = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and path.suffix != ".log"}
    again = run_to_end(cli, "linen", workdir)
    assert "nothing to do" in again.stdout
    del contents[workdir / "lock"]
    assert {path: path.read_bytes() for path in contents} == contents


def test_compiling_afresh_and_finding_it_in_the_cache_give_the_same_bits(cli, tmp_path, uninterrupted):
    cache = tmp_path / "cache"
    env = {"JAX_COMPILATION_CACHE_DIR": str(cache)}

    def programs() -> set[str]:
        return {path.name for path in cache.iterdir() if not path.name.endswith("-atime")}

    run_to_end(cli, "linen", tmp_path / "fresh", **env)
    compiled = programs()
    assert compiled
    run_to_end(cli, "linen", tmp_path / "cached", **env)
    assert programs() == compiled, "the second run has compiled nothing"
    assert_equal(outcome(tmp_path / "fresh"), uninterrupted("linen"))
    assert_equal(outcome(tmp_path / "cached"), uninterrupted("linen"))


def test_the_comparison_sees_one_bit_one_line_and_one_number(uninterrupted):
    told_lines, leaves = uninterrupted("nnx")
    assert {line["split"] for line in told_lines} == {"train", "validation"}
    assert [line["step"] for line in told_lines] == [4, 5, 8, 10, 12, 15, 16, 20, 20, 24, 24]
    assert len({line["loss"] for line in told_lines}) == len(told_lines)
    assert {name.split("/")[0] for name in leaves} >= {"params", "model_state", "opt_state", "step", "key"}
    name, (dtype, shape, content) = next((n, leaf) for n, leaf in leaves.items() if n.startswith("model_state"))
    flipped = bytes([content[0] ^ 1]) + content[1:]
    for other in (
        (told_lines, {**leaves, name: (dtype, shape, flipped)}),
        (told_lines[:-1], leaves),
        ([*told_lines[:-1], {**told_lines[-1], "loss": np.nextafter(told_lines[-1]["loss"], 1)}], leaves),
    ):
        with pytest.raises(AssertionError):
            assert_equal(other, (told_lines, leaves))
