"""Row 6 of the faults for the checkpoints alone: a really full disk, which these tests mount (as root) and unmount."""

import contextlib
import shutil
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.checkpoint import Checkpoints, verify
from jaxtrain.errors import StorageError


def _poll_until(checkpoints: Checkpoints, secs: float = 60) -> int:
    deadline = time.monotonic() + secs
    while (step := checkpoints.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return step


@contextlib.contextmanager
def _small_disk(path, size):
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _random(seed: int, size: int) -> dict[str, jax.Array]:
    """`size` bytes that do not compress."""
    words = np.random.default_rng(seed).integers(2**32, size=size // 4, dtype=np.uint32)
    return {"w": jnp.asarray(words)}


def test_a_full_disk_is_told_with_path_needed_and_free_bytes_and_older_ones_stay(tmp_path, caplog):
    disk = tmp_path / "disk"
    with _small_disk(disk, "4m"):
        checkpoints = Checkpoints(disk, keep_last=5)
        for step in (1, 2):
            checkpoints.save(step, _random(step, 1_200_000), {})
        assert _poll_until(checkpoints) == 1
        assert _poll_until(checkpoints) == 2
        checkpoints.save(3, _random(3, 2_400_000), {})
        with pytest.raises(StorageError) as caught:  # from the background, by the first poll after its end
            _poll_until(checkpoints)
        message = str(caught.value)
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []  # told once, no traceback
        free = shutil.disk_usage(disk).free
        for part in (f"{disk}/3 ", "No space left on device", "2,400,000 bytes", f"{free:,} bytes are free", "1, 2"):
            assert part in message
        assert checkpoints.poll() is None
        assert [path.name for path in sorted(disk.iterdir())] == ["1", "2"]
        for step in (1, 2):
            np.testing.assert_array_equal(
                checkpoints.restore(step, _random(0, 1_200_000))["w"], _random(step, 1_200_000)["w"]
            )
        shutil.rmtree(disk / "1")  # room again: the same object goes on
        checkpoints.save(3, _random(3, 2_000_000), {})
        assert _poll_until(checkpoints) == 3
        checkpoints.close()
        assert verify.search(disk).found.step == 3


def test_however_much_room_there_is_a_save_commits_whole_or_is_an_error(tmp_path):
    disk = tmp_path / "disk"
    ends = set()
    with _small_disk(disk, "4m"):
        checkpoints = Checkpoints(disk / "checkpoints", keep_last=1)
        checkpoints.save(1, _random(1, 300_000), {})
        checkpoints.wait()
        used = 4096 * 20 + 400_000
        for step, room in enumerate(range(0, used, 32_768), start=2):
            checkpoints.poll()
            filler = shutil.disk_usage(disk).free - room
            (disk / "filler").write_bytes(bytes(filler))
            try:
                checkpoints.save(step, _random(step, 300_000), {})
                checkpoints.wait()
                ends.add("saved")
            except StorageError:
                ends.add("refused")
            found = verify.search(disk / "checkpoints")
            assert not found.damaged
            assert found.found.step == max(checkpoints.steps())
            (disk / "filler").unlink()
        checkpoints.close()
    assert ends == {"saved", "refused"}


def test_a_save_that_nobody_polls_fails_close(tmp_path):
    disk = tmp_path / "disk"
    with _small_disk(disk, "1m"):
        checkpoints = Checkpoints(disk, keep_last=5)
        checkpoints.save(1, _random(1, 2_000_000), {})
        with pytest.raises(StorageError, match="No space left"):
            checkpoints.close()
