"""The checkpoints of one run: saved in the background, found again by what verifies, thinned out by retention."""

import concurrent.futures
import contextlib
import json
import logging
import pathlib
import platform
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxtrain import compat
from jaxtrain.checkpoint import leaves, restore, retention
from jaxtrain.checkpoint import manifest as manifests
from jaxtrain.checkpoint import verify as verification
from jaxtrain.checkpoint.manifest import DamagedError, Manifest
from jaxtrain.checkpoint.quiet import silence_second_accounts
from jaxtrain.checkpoint.verify import Found
from jaxtrain.errors import CheckpointError, StorageError
from jaxtrain.typing import PyTree

_logger = logging.getLogger(__name__)

# Orbax counts a save's time by the clock on the wall: set forward by a time server, it would end the save.
_NEVER_SECS = 50 * 365 * 86400


class Checkpoints:
    """The directory `checkpoints/<step>/` of one run. One process-wide instance, used from one thread.

    Built on Orbax's AsyncCheckpointer instead of its CheckpointManager. The manager declines a save without a word when
    any directory has a higher number, and asks JAX's preemption service in each save, which answers yes only once: the
    training loop would never hear of it.

    Must be closed: while the interpreter exits, Orbax can no longer finish a save.
    """

    def __init__(
        self,
        directory: pathlib.Path | str,
        *,
        keep_last: int,
        keep_every: Callable[[int], bool] = lambda step: False,
        keep_best: Callable[[list[int]], Collection[int]] = lambda steps: (),
        config_hash: str = "",
        notify: Callable[[str], None] = _logger.warning,
    ):
        """Open or create the directory and remove what killed saves left in it.

        Retention keeps the `keep_last` newest checkpoints and, for good, the first one at or after each step for which
        `keep_every` is true, and those that `keep_best(steps)` chooses among the steps before the newest. `notify` is
        told whatever a person should know.
        """
        assert keep_last >= 1
        self._directory = pathlib.Path(directory).absolute()
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._keep_best = keep_best
        self._config_hash = config_hash
        self._notify = notify
        self._verified: dict[int, Manifest] = {}
        self._reports: deque[int] = deque()  # committed steps that poll() has not returned yet
        self._commit: concurrent.futures.Future[int] | None = None
        self._retirements: deque[concurrent.futures.Future[None]] = deque()
        # Two threads, so that a slow verification never delays the news of a commit.
        self._commit_thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint-commit")
        self._retire_thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint-retire")
        self._draft: Manifest | None = None
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._write_manifest,
                timeout_secs=_NEVER_SECS,
                # A directory that cannot be made fails save() at once; made in the background, its users wait minutes.
                create_directories_asynchronously=False,
            ),
        )
        silence_second_accounts()
        self._directory.mkdir(parents=True, exist_ok=True)
        for name in retention.remove_stale(self._directory) if jax.process_index() == 0 else ():
            notify(f"Removed {self._directory / name}, left by a run that was killed while saving or deleting.")

    def steps(self) -> list[int]:
        """List the steps that have a committed checkpoint, oldest first, verified or not."""
        paths = verification.numbered(self._directory)
        return sorted(step for step, path in paths.items() if (path / manifests.FILE_NAME).exists())

    def save(self, step: int, state: PyTree, info: Mapping[str, Any]) -> None:
        """Start to save a state of `jax.Array` leaves; return once its arrays may be donated and overwritten.

        `info` is JSON-able and comes back as `Found.manifest.info`. Waits for the save before, if any. Raises
        StorageError when that one failed, when this one cannot start, or when the step is not newer than every other.
        """
        self.wait()
        newest = max(self.steps(), default=-1)
        path = self._directory / str(step)
        if step <= newest:
            raise StorageError(f"{path} was not saved: there is a checkpoint of step {newest}, and steps only go up.")
        if path.exists() and jax.process_index() == 0:
            aside = retention.set_aside(path)
            self._notify(
                f"Moved {path}, which is no checkpoint, to {aside} to make room for the checkpoint of step {step}."
            )
        named = leaves.named(state)
        self._draft = Manifest(
            step=step,
            time=time.time(),
            keep=any(map(self._keep_every, range(max(newest, 0) + 1, step + 1))),
            config_hash=self._config_hash,
            versions=_versions(),
            info=json.loads(json.dumps(dict(info))),  # fails here, in the caller's thread, if it is no JSON
            leaves=leaves.describe(named),
            files={},
        )
        needed = leaves.num_bytes(named)
        item = ocp.args.StandardSave(leaves.stored(named))
        try:
            self._checkpointer.save(path, args=ocp.args.Composite(**{restore.ITEM_NAME: item}))
        except (OSError, ValueError, RuntimeError) as error:
            raise self._storage_error(path, needed, error) from error
        self._commit = self._commit_thread.submit(self._finish, step, path, needed)

    def poll(self) -> int | None:
        """Return a step that has committed since the last call, once each; start retention for it.

        Costs microseconds while nothing has happened. Raises StorageError if a save failed in the background, or if a
        committed one reads back differently.
        """
        self._collect(block=False)
        while self._retirements and self._retirements[0].done():
            self._retirements.popleft().result()
        return self._reports.popleft() if self._reports else None

    def wait(self) -> None:
        """Return once the save in flight, if any, has committed. Raises StorageError if it failed."""
        self._collect(block=True)

    def newest(self) -> Found | None:
        """Find the newest checkpoint that verifies, and move damaged ones above it to `damaged/`, saying why.

        None means that no checkpoint was ever written here. Raises CheckpointError, and moves nothing, when there are
        checkpoints and none verifies: a fresh start would hide the loss.
        """
        result = verification.search(self._directory)
        for step, reason in result.foreign.items():
            self._notify(f"Skipped {self._directory / str(step)}, which is no checkpoint: {reason}.")
        if result.found is None:
            if result.damaged:
                raise CheckpointError(_none_verifies(self._directory, result.damaged))
            return None
        for step, reason in result.damaged.items():
            aside = retention.set_aside(self._directory / str(step))
            self._notify(f"The checkpoint of step {step} is damaged: {reason}. Moved it to {aside}.")
        self._verified[result.found.step] = result.found.manifest
        return result.found

    def restore(self, step: int, abstract_state: PyTree) -> PyTree:
        """Restore a step into the structure, shapes, dtypes and shardings of `abstract_state`.

        Verifies the step first unless this object already did. Raises CheckpointError if it is damaged, or naming every
        leaf that differs with what was saved and what is wanted.
        """
        self.check(step, abstract_state)
        return restore.read_state(self._directory / str(step), self._verified[step], abstract_state)

    def check(self, step: int, abstract_state: PyTree) -> None:
        """Raise what `restore` would raise, without reading the state."""
        path = self._directory / str(step)
        if step not in self._verified:
            try:
                self._verified[step] = verification.verify(path)
            except DamagedError as reason:
                raise CheckpointError(f"The checkpoint {path} cannot be restored: {reason}.") from reason
        leaves.check_same(
            dict(self._verified[step].leaves), leaves.describe(leaves.named(abstract_state)), f"The checkpoint {path}"
        )

    def close(self) -> None:
        """Wait for the save in flight, its verification and retention. Raises StorageError if any of them failed."""
        try:
            self.wait()
            while self._retirements:
                self._retirements.popleft().result()
        finally:
            self._commit_thread.shutdown()
            self._retire_thread.shutdown()
            # On a full disk a save fails in several places; Orbax raises the second one here, and would hide the first.
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                self._checkpointer.close()

    def _collect(self, block: bool) -> None:
        commit = self._commit
        if commit is None or not (block or commit.done()):
            return
        concurrent.futures.wait([commit])
        self._commit = None
        step = commit.result()
        self._reports.append(step)
        if jax.process_index() == 0:
            self._retirements.append(self._retire_thread.submit(self._retire, step))

    def _write_manifest(self) -> None:
        """Run by Orbax on process 0 between the last data and the rename; raising prevents the commit."""
        assert self._draft is not None
        path = self._directory / f"{self._draft.step}{compat.ORBAX_TMP_SUFFIX}"
        manifests.write(path, self._draft)

    def _finish(self, step: int, path: pathlib.Path, needed: int) -> int:
        """Wait, in the commit thread, until the step has its final name."""
        try:
            self._checkpointer.wait_until_finished()
            retention.sync_directory(self._directory)
        except Exception as error:  # whatever went wrong with a save in the background, it is told as one kind of end
            raise self._storage_error(path, needed, error) from error
        return step

    def _retire(self, step: int) -> None:
        """Verify, in the retirement thread, what was just committed, and only then delete what it supersedes."""
        path = self._directory / str(step)
        try:
            self._verified[step] = verification.verify(path)
        except DamagedError as reason:
            raise StorageError(f"The checkpoint {path} was written but reads back damaged: {reason}.") from reason
        steps = self.steps()
        try:
            best = self._keep_best([older for older in steps if older < step])
        except OSError as error:
            self._notify(f"No old checkpoint was deleted, since it cannot be told which ones are the best: {error}.")
            return
        for old in retention.superseded(steps, step, self._keep_last, lambda s: s in best or self._is_kept(s)):
            self._verified.pop(old, None)
            try:
                retention.delete(self._directory / str(old))
            except OSError as error:  # nothing is lost; the next commit tries again
                self._notify(f"The checkpoint of step {old} is no longer kept but cannot be deleted: {error}.")

    def _is_kept(self, step: int) -> bool:
        try:
            return manifests.read(self._directory / str(step)).keep
        except DamagedError:  # says nothing; what cannot be judged stays
            return True

    def _storage_error(self, path: pathlib.Path, needed: int, error: BaseException) -> StorageError:
        """Give back the space that the failed save took, then say what failed and what would have been needed."""
        if jax.process_index() == 0:
            retention.remove_stale(self._directory)
        free = shutil.disk_usage(self._directory).free
        kept = ", ".join(map(str, self.steps())) or "none"
        return StorageError(
            f"The checkpoint {path} could not be written: {_cause(error)}. It needs about {needed:,} bytes and "
            f"{free:,} bytes are free there. Checkpoints already saved are intact (steps: {kept}). "
            f"Make room and run the same command again."
        )


def _cause(error: BaseException) -> str:
    """Say in a few words what failed: Orbax and TensorStore wrap the operating system's word in pages of context."""
    text = str(error)
    for known in ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied"):
        if known in text:
            return known
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else 'no message'}"


def _none_verifies(directory: pathlib.Path, damaged: Mapping[int, str]) -> str:
    listed = "\n".join(f"  step {step}: {reason}" for step, reason in damaged.items())
    return (
        f"None of the checkpoints in {directory} verifies, and nothing was moved or overwritten:\n{listed}\n"
        "Restore one from a backup, begin anew with --fresh, or start another run with another --workdir."
    )


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "orbax": ocp.__version__,
        "numpy": np.__version__,
    }
