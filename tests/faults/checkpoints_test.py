"""Rows 9 to 12 of the faults: checkpoints that are damaged, foreign, or of another model."""

import shutil

import pytest

from tests.faults.trial import COMMAND, assert_same_run, saved_steps


@pytest.fixture
def workdir(here, reference):
    """A copy of the undisturbed run's workdir, which `COMMAND` takes for its own."""
    return shutil.copytree(reference, here / "w")


def truncate(checkpoint):
    data = largest_file(checkpoint)
    data.write_bytes(data.read_bytes()[:-7])


def flip_one_bit(checkpoint):
    data = largest_file(checkpoint)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def delete_a_file(checkpoint):
    largest_file(checkpoint).unlink()


def garble_the_manifest(checkpoint):
    (checkpoint / "manifest.json").write_bytes(b"\xff{nonsense")


def garble_the_metadata(checkpoint):
    (checkpoint / "default" / "_METADATA").write_text("{}")


def largest_file(checkpoint):
    files = [path for path in (checkpoint / "default").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


DAMAGES = {
    truncate: "bytes instead of",
    flip_one_bit: "changed after they were written",
    delete_a_file: "is missing",
    garble_the_manifest: "manifest.json is garbled",
    garble_the_metadata: "default/_METADATA has 2 bytes",
}


@pytest.mark.parametrize(
    "damages", [(truncate, flip_one_bit, delete_a_file), (garble_the_manifest, garble_the_metadata)]
)
def test_damaged_checkpoints_are_set_aside_with_the_reason_and_the_one_before_is_used(cli, workdir, reference, damages):
    damaged = dict(zip((12, 9, 6), damages, strict=False))
    for step, damage in damaged.items():
        damage(workdir / "checkpoints" / str(step))
    ended = cli.run(*COMMAND)
    assert ended.returncode == 0, ended.output
    for step, damage in damaged.items():
        told = ended.stdout.partition(f"The checkpoint of step {step} is damaged: ")[2].partition("\n")[0]
        assert DAMAGES[damage] in told
        assert f"Moved it to {workdir}/checkpoints/damaged/{step}-1" in told
        assert (workdir / f"checkpoints/damaged/{step}-1").is_dir()
    assert saved_steps(workdir) == [3, 6, 9, 12]
    assert_same_run(workdir, reference)


def test_directories_that_are_no_checkpoints_are_skipped_with_the_reason(cli, workdir, reference):
    checkpoints = workdir / "checkpoints"
    shutil.rmtree(checkpoints / "12")
    (checkpoints / "12").mkdir()
    (checkpoints / "40").mkdir()
    (checkpoints / "40/notes.txt").write_text("mine")
    # These two Orbax rewrites after the manifest; nothing is restored from them.
    (checkpoints / "9/_CHECKPOINT_METADATA").write_bytes(b"\xff")
    ended = cli.run(*COMMAND)
    assert ended.returncode == 0, ended.output
    assert f"Skipped {checkpoints}/12, which is no checkpoint: it is empty." in ended.stdout
    assert f"Skipped {checkpoints}/40, which is no checkpoint: nothing in it is of a checkpoint." in ended.stdout
    assert (checkpoints / "40/notes.txt").read_text() == "mine"
    assert_same_run(workdir, reference)


def test_without_a_checkpoint_that_verifies_nothing_is_started_unless_asked(cli, workdir, reference):
    for step, damage in zip((3, 6, 9, 12), (truncate, flip_one_bit, delete_a_file, garble_the_manifest), strict=True):
        damage(workdir / "checkpoints" / str(step))
    before = {path: path.read_bytes() for path in (workdir / "checkpoints").rglob("*") if path.is_file()}
    ended = cli.run(*COMMAND)
    assert ended.returncode == 2, ended.output
    assert "Traceback" not in ended.output
    for step in (3, 6, 9, 12):
        assert f"step {step}: " in ended.stderr
    assert "--fresh" in ended.stderr
    assert {path: path.read_bytes() for path in (workdir / "checkpoints").rglob("*") if path.is_file()} == before
    ended = cli.run(*COMMAND, "--fresh")
    assert ended.returncode == 0, ended.output
    assert_same_run(workdir, reference)
    assert (workdir / "set_aside/1/checkpoints/3").is_dir()


def test_a_checkpoint_of_another_model_is_refused_leaf_by_leaf(cli, workdir):
    before = {name: (workdir / name).read_bytes() for name in ("config.json", "manifest.json", "metrics.jsonl")}
    other = ("--config.task.model.features=(16, 8)", "--config.precision.params=bfloat16")
    ended = cli.run(*COMMAND, *other, "--config.duration=15 steps", "--allow_drift")
    assert ended.returncode == 2, ended.output
    for told in (
        "params/Dense_0/kernel: saved float32[5, 8], wanted bfloat16[5, 16]",
        "params/Dense_1/bias: saved float32[3], wanted bfloat16[8]",
        "params/Dense_2/kernel: saved nothing, wanted bfloat16[8, 3]",
    ):
        assert told in ended.stderr
    assert "Traceback" not in ended.output
    assert saved_steps(workdir) == [3, 6, 9, 12]
    assert {name: (workdir / name).read_bytes() for name in before} == before
