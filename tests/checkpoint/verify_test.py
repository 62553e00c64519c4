"""Damage in every file of a real checkpoint, one file at a time."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxtrain.checkpoint import Checkpoints, verify
from jaxtrain.checkpoint.manifest import DamagedError
from tests.checkpoint import states


def _flip_a_bit(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def _garble(path: pathlib.Path) -> None:
    path.write_bytes(bytes(reversed(path.read_bytes())))


DAMAGES = {
    "flipped": _flip_a_bit,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": pathlib.Path.unlink,
    "garbled": _garble,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with the checkpoint of step 7, which no test may change."""
    directory = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(directory, keep_last=1)
    checkpoints.save(7, states.make_state(), {"position": 70})
    checkpoints.close()
    return directory


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_any_single_file_is_detected_or_changes_no_restored_bit(saved, tmp_path, damage):
    state = states.make_state()
    names = sorted(path.relative_to(saved) for path in saved.rglob("*") if path.is_file())
    assert len(names) > 8
    detected = 0
    for number, name in enumerate(names):
        directory = shutil.copytree(saved, tmp_path / str(number))
        DAMAGES[damage](directory / name)
        result = verify.search(directory)
        if result.found is None:
            assert list(result.damaged) == [7]
            detected += 1
        else:
            assert name.name in ("_CHECKPOINT_METADATA", "commit_success.txt"), name
            checkpoints = Checkpoints(directory, keep_last=1)
            states.assert_bit_equal(checkpoints.restore(7, states.abstract(state)), state)
            checkpoints.close()
    assert detected >= len(names) - 2


def test_plain_orbax_restores_wrong_values_from_a_flipped_bit_without_a_word(tmp_path):
    """The negative control: without the manifest nothing would be noticed."""
    value = jnp.asarray(np.random.default_rng(0).normal(size=100_000), jnp.float32)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave({"w": value}))
        manager.wait_until_finished()
        largest = max(tmp_path.rglob("*"), key=lambda path: path.stat().st_size)
        _flip_a_bit(largest)
        restored = manager.restore(1, args=ocp.args.StandardRestore(states.abstract({"w": value})))
    assert not np.array_equal(restored["w"], value)


def test_the_reason_names_the_file(copy):
    _flip_a_bit(copy / "7/default/_METADATA")
    with pytest.raises(DamagedError, match=r"default/_METADATA changed"):
        verify.verify(copy / "7")
    (copy / "7/default/_METADATA").unlink()
    with pytest.raises(DamagedError, match=r"default/_METADATA is missing"):
        verify.verify(copy / "7")


def test_a_checkpoint_under_another_number_is_not_trusted(copy):
    (copy / "7").rename(copy / "70")
    assert verify.search(copy).damaged == {70: "it is the checkpoint of step 7 under another name"}


def test_a_checkpoint_moved_or_copied_with_its_directory_verifies(saved, tmp_path):
    """Row 37 of the faults: `cp -r` and `mv` of a workdir."""
    moved = shutil.copytree(saved, tmp_path / "elsewhere" / "deep").rename(tmp_path / "moved")
    assert verify.search(moved).found.step == 7


def test_the_newest_that_verifies_is_found_and_no_older_one_is_read(copy):
    for step in (8, 9, 10):
        shutil.copytree(copy / "7", copy / str(step))  # under another name: damaged
    (copy / "11").mkdir()
    (copy / "12").mkdir()
    (copy / "12/holiday.jpg").write_bytes(b"x")
    (copy / "5").mkdir()
    for name in ("007", "7.5", "-3", "logs", "damaged"):
        (copy / name).mkdir()
    (copy / "13").write_bytes(b"a file")
    result = verify.search(copy)
    assert result.found.step == 7
    assert list(result.damaged) == [10, 9, 8]
    assert result.foreign == {12: "nothing in it is of a checkpoint", 11: "it is empty"}


def test_an_unreadable_file_is_damage(copy):
    (copy / "7/default/_METADATA").unlink()
    (copy / "7/default/_METADATA").mkdir()
    with pytest.raises(DamagedError):
        verify.verify(copy / "7")


def test_a_search_changes_nothing_on_disk(copy):
    shutil.copytree(copy / "7", copy / "8")
    before = sorted(copy.rglob("*"))
    verify.search(copy)
    assert sorted(copy.rglob("*")) == before


def test_the_manifest_holds_every_leaf_of_the_state(saved):
    manifest = verify.search(saved).found.manifest
    assert manifest.info == {"position": 70}
    assert len(manifest.leaves) == len(jax.tree.leaves(states.make_state()))
    assert manifest.leaves["step"].dtype == "int32"
    assert manifest.leaves["key"].dtype == "key<fry>"
