import contextlib
import json
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxtrain import compat
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.checkpoint import manifest as manifests
from jaxtrain.errors import CheckpointError, StorageError
from tests.checkpoint import states


@pytest.fixture
def told():
    return []


@pytest.fixture
def open_checkpoints(tmp_path, told):
    """Open the same directory as often as a test likes."""
    with contextlib.ExitStack() as stack:

        def open_one(directory=tmp_path / "checkpoints", **arguments):
            return stack.enter_context(
                contextlib.closing(Checkpoints(directory, notify=told.append, **{"keep_last": 5, **arguments}))
            )

        yield open_one


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def _small(value: float) -> dict[str, jax.Array]:
    return {"w": jnp.full(4, value, jnp.float32)}


def _save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, _small(step), {"position": 10 * step})
    checkpoints.wait()


def _fill(directory, *steps: int) -> None:
    """Save some steps and close, so that no verification is still reading when a test damages them."""
    with contextlib.closing(Checkpoints(directory, keep_last=5)) as checkpoints:
        _save(checkpoints, *steps)


def _poll_until(checkpoints: Checkpoints, secs: float = 60) -> int:
    deadline = time.monotonic() + secs
    while (step := checkpoints.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return step


def test_a_save_is_reported_once_when_it_has_committed(open_checkpoints, directory):
    checkpoints = open_checkpoints(config_hash="abc")
    assert checkpoints.poll() is None
    assert checkpoints.newest() is None
    checkpoints.save(3, _small(3), {"position": 30, "loss": 0.1})
    assert _poll_until(checkpoints) == 3
    assert (directory / "3/manifest.json").exists()
    assert checkpoints.poll() is None
    found = checkpoints.newest()
    assert found.step == 3
    assert found.manifest.info == {"position": 30, "loss": 0.1}
    assert found.manifest.config_hash == "abc"
    assert found.manifest.versions["jax"] == jax.__version__


def test_steps_that_commit_between_two_polls_are_each_reported(open_checkpoints):
    checkpoints = open_checkpoints()
    _save(checkpoints, 3, 6)
    assert [checkpoints.poll(), checkpoints.poll(), checkpoints.poll()] == [3, 6, None]


def test_the_manifest_is_there_at_the_moment_of_the_rename_and_not_after(open_checkpoints, directory, monkeypatch):
    seen = []

    def write(path, manifest):
        original(path, manifest)
        seen.append((path, (path / "manifest.json").exists(), (directory / "3").exists()))

    original = manifests.write
    monkeypatch.setattr(manifests, "write", write)
    _save(open_checkpoints(), 3)
    assert seen == [(directory / f"3{compat.ORBAX_TMP_SUFFIX}", True, False)]


@pytest.mark.parametrize("sharded", [False, True])
def test_buffers_donated_and_overwritten_right_after_a_save_do_not_reach_the_checkpoint(open_checkpoints, sharded):
    checkpoints = open_checkpoints()
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("fsdp",))
    spec = jax.sharding.PartitionSpec("fsdp") if sharded else jax.sharding.PartitionSpec()
    sharding = jax.sharding.NamedSharding(mesh, spec) if sharded else jax.devices()[0]
    state = {str(i): jax.device_put(jnp.full((8, 250_000), float(i)), sharding) for i in range(4)}
    state["small"] = jax.device_put(jnp.arange(8.0), sharding)
    expected = jax.tree.map(lambda x: np.array(x), state)
    wanted = states.abstract(state)
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0).lower(state).compile()
    for step in (1, 2):
        checkpoints.save(step, state, {})
        for _ in range(3):
            state = overwrite(state)
        jax.block_until_ready(state)
        checkpoints.wait()
        states.assert_bit_equal(jax.tree.map(np.asarray, checkpoints.restore(step, wanted)), expected)
        expected = jax.tree.map(lambda x: np.array(x), state)


def test_damaged_ones_are_set_aside_with_the_reason_and_the_one_before_is_used(open_checkpoints, directory, told):
    _fill(directory, 1, 2, 3)
    data = max((directory / "3").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    data.write_bytes(data.read_bytes()[:-1] + b"\x00")
    shutil.rmtree(directory / "2/default")
    checkpoints = open_checkpoints()
    found = checkpoints.newest()
    assert found.step == 1
    np.testing.assert_array_equal(checkpoints.restore(1, _small(0))["w"], 1.0)
    assert sorted(path.name for path in (directory / "damaged").iterdir()) == ["2-1", "3-1"]
    assert any("step 3 is damaged" in line and data.name in line and "damaged/3-1" in line for line in told)
    assert any("step 2 is damaged" in line and "is missing" in line for line in told)
    _save(checkpoints, 2, 3)  # the run goes on over the same steps
    assert open_checkpoints().newest().step == 3


def test_when_none_verifies_each_is_told_and_nothing_moves(open_checkpoints, directory):
    _fill(directory, 1, 2)
    for step in (1, 2):
        (directory / f"{step}/default/_METADATA").write_bytes(b"?")
    before = sorted(directory.rglob("*"))
    for _ in range(2):  # also when started again: never a fresh start
        with pytest.raises(CheckpointError, match=r"(?s)step 2: default/_METADATA.*step 1: default/_METADATA"):
            open_checkpoints().newest()
    assert sorted(directory.rglob("*")) == before


def test_empty_and_foreign_numbers_are_skipped_with_the_reason_and_do_not_stop_saves(open_checkpoints, directory, told):
    _fill(directory, 3)
    (directory / "6").mkdir()
    (directory / "9999").mkdir()
    (directory / "9999/notes.txt").write_text("mine")
    checkpoints = open_checkpoints()
    assert checkpoints.newest().step == 3
    assert any("/6," in line and "empty" in line for line in told)
    assert any("/9999," in line for line in told)
    _save(checkpoints, 6)
    assert checkpoints.steps() == [3, 6]
    assert open_checkpoints().newest().step == 6
    assert (directory / "9999/notes.txt").read_text() == "mine"
    assert (directory / "damaged/6-1").exists()


def test_an_empty_number_alone_is_no_lost_checkpoint(open_checkpoints, directory):
    checkpoints = open_checkpoints()
    (directory / "7").mkdir()
    assert checkpoints.newest() is None


def test_leftovers_of_killed_saves_and_deletions_are_removed_at_start(open_checkpoints, directory, told):
    for name in (f"7{compat.ORBAX_TMP_SUFFIX}", "3.deleted"):
        (directory / name / "default").mkdir(parents=True)
    open_checkpoints()
    assert list(directory.iterdir()) == []
    assert len(told) == 2


def test_a_step_that_orbax_would_decline_without_a_word_is_an_error(open_checkpoints, tmp_path):
    with ocp.CheckpointManager(tmp_path / "orbax") as manager:  # the negative control
        assert manager.save(5, args=ocp.args.StandardSave(_small(5)))
        assert manager.save(5, args=ocp.args.StandardSave(_small(6))) is False
        assert manager.save(4, args=ocp.args.StandardSave(_small(4))) is False
    checkpoints = open_checkpoints()
    _save(checkpoints, 5)
    for step in (5, 4):
        with pytest.raises(StorageError, match=f"/{step} was not saved"):
            checkpoints.save(step, _small(step), {})
    np.testing.assert_array_equal(checkpoints.restore(5, _small(0))["w"], 5.0)


def test_info_that_is_no_json_fails_in_the_callers_thread(open_checkpoints):
    checkpoints = open_checkpoints()
    with pytest.raises(TypeError):
        checkpoints.save(1, _small(1), {"array": np.zeros(3)})
    _save(checkpoints, 1)
    assert checkpoints.newest().step == 1


def test_info_with_numbers_as_keys_comes_back_as_json_has_it(open_checkpoints):
    checkpoints = open_checkpoints()
    checkpoints.save(1, _small(1), {"bad": {10: 1, 9: 2}, "pair": (1, 2)})
    checkpoints.wait()
    assert checkpoints.newest().manifest.info == {"bad": {"9": 2, "10": 1}, "pair": [1, 2]}


def test_retention_keeps_the_last_ones_and_those_kept_for_good(open_checkpoints):
    checkpoints = open_checkpoints(keep_last=2, keep_every=lambda step: step % 4 == 0)
    for step in range(1, 8):
        _save(checkpoints, step)
        assert checkpoints.poll() == step
    checkpoints.close()
    assert checkpoints.steps() == [4, 6, 7]


def test_one_checkpoint_is_kept_for_each_period_although_none_falls_on_its_multiple(open_checkpoints):
    every_ten = {"keep_last": 1, "keep_every": lambda step: step % 10 == 0}
    for steps in ((3, 6, 9), (12, 15, 18), (19, 21, 24, 27)):  # also across restarts
        checkpoints = open_checkpoints(**every_ten)
        for step in steps:
            _save(checkpoints, step)
            checkpoints.poll()
        checkpoints.close()
    assert checkpoints.steps() == [12, 21, 27]


def test_nothing_is_deleted_when_the_newer_one_reads_back_damaged(open_checkpoints, directory, monkeypatch):
    checkpoints = open_checkpoints(keep_last=1)
    _save(checkpoints, 1)
    checkpoints.poll()
    original = manifests.write

    def write_then_rot(path, manifest):
        original(path, manifest)
        (path / "default/_METADATA").write_bytes(b"rot")

    monkeypatch.setattr(manifests, "write", write_then_rot)
    checkpoints.save(2, _small(2), {})
    with pytest.raises(StorageError, match="reads back damaged: default/_METADATA"):
        checkpoints.close()
    assert open_checkpoints().newest().step == 1


def test_orbax_tools_can_read_a_checkpoint(open_checkpoints, directory):
    checkpoints = open_checkpoints()
    checkpoints.save(2, {"params": {"w": jnp.arange(3.0)}}, {})
    checkpoints.wait()
    with ocp.CheckpointManager(directory) as manager:
        restored = manager.restore(2, args=ocp.args.StandardRestore({"params/w": jnp.zeros(3)}))
    np.testing.assert_array_equal(restored["params/w"], [0.0, 1.0, 2.0])


def test_polling_costs_microseconds(open_checkpoints):
    checkpoints = open_checkpoints()
    started = time.perf_counter()
    for _ in range(1000):
        checkpoints.poll()
    assert (time.perf_counter() - started) / 1000 < 100e-6


def test_a_manifest_is_plain_json(open_checkpoints, directory):
    _save(open_checkpoints(), 1)
    content = json.loads((directory / "1/manifest.json").read_text())
    assert content["step"] == 1
    assert content["leaves"] == {"w": {"shape": [4], "dtype": "float32"}}


def test_the_best_of_the_older_steps_are_kept_and_the_newest_always(open_checkpoints):
    asked = []

    def keep_best(steps):
        asked.append(steps)
        return {6} & set(steps)

    checkpoints = open_checkpoints(keep_last=1, keep_best=keep_best)
    for step in (3, 6, 9, 12):
        _save(checkpoints, step)
    checkpoints.close()
    assert checkpoints.steps() == [6, 12]
    assert all(12 not in steps for steps in asked)  # the newest has no score yet, and needs none


def test_when_it_cannot_be_told_which_are_the_best_nothing_is_deleted(open_checkpoints, told):
    def keep_best(steps):
        raise FileNotFoundError("metrics.jsonl")

    checkpoints = open_checkpoints(keep_last=1, keep_best=keep_best)
    for step in (3, 6):
        _save(checkpoints, step)
    checkpoints.close()
    assert checkpoints.steps() == [3, 6]
    assert "No old checkpoint was deleted, since it cannot be told which ones are the best: metrics.jsonl." in told
