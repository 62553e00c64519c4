"""`Workdir`: the paths of a run's directory, and the only place that writes its JSON files."""

import json
import os
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtrain import files
from jaxtrain.errors import WorkdirError
from jaxtrain.workdir.lock import Lock, read_run_id
from jaxtrain.workdir.status import Status

HEARTBEAT_SECS = 5.0


class Workdir:
    """The directory of one run, locked before anything is written. Its layout is in the attributes.

    Moving or copying the directory is allowed. Of the processes of a run only the first locks it, and writes what they
    share; each has a log and a status of its own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        make_parent: bool = False,
        process: int = 0,
        num_processes: int = 1,
    ):
        """Make the directory (mode 0700) and its parts, and try to write there; `create=False` only looks.

        A missing parent is refused, because it is most often a typo or a disk that is not mounted; `make_parent` is for
        the default path. process: which of the run's processes this is. Raises WorkdirError.
        """
        self.path = Path(os.path.abspath(path))
        self.config_path = self.path / "config.json"
        self.manifest_path = self.path / "manifest.json"
        self.status_path = self.path / "status.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.lock_path = self.path / "lock"
        self.tensorboard_dir = self.path / "tensorboard"
        self.trackers_dir = self.path / "trackers"
        self.logs_dir = self.path / "logs"
        self.checkpoints_dir = self.path / "checkpoints"
        self.autotune_dir = self.path / "autotune"
        self.run_id = uuid.uuid4().hex[:12]
        self._lock: Lock | None = None
        self.is_first = process == 0
        self._process = process
        self._status = Status(self._status_paths(num_processes), self.run_id)
        self._released = threading.Event()
        self._heartbeat: threading.Thread | None = None
        if create:
            self._create(make_parent)
        elif not self.path.is_dir():
            raise WorkdirError(f"There is no run at {self.path}: {self._what_is_wrong('no such directory')}.")

    def lock(self, heartbeat_secs: float = HEARTBEAT_SECS) -> str:
        """Claim the directory for this process and start the heartbeat.

        Returns a sentence when the lock of a dead run was taken over, else "". A run that was killed on another machine
        is only known to be dead after a few of its heartbeats stayed away. Raises WorkdirError naming the other run.
        """
        assert self._lock is None, "locked twice"
        lock = Lock(self.lock_path, self.run_id)
        notice = lock.acquire()
        self._lock = lock
        self.start_heartbeat(heartbeat_secs)
        return notice

    def holder(self) -> str:
        """The id of the run that holds the lock, as this process sees the file; "" if none does."""
        return read_run_id(self.lock_path)

    def start_heartbeat(self, heartbeat_secs: float = HEARTBEAT_SECS) -> None:
        """Begin to write the status again and again; `lock` does so itself."""
        self._released.clear()
        self._heartbeat = threading.Thread(target=self._beat, args=(heartbeat_secs,), name="heartbeat", daemon=True)
        self._heartbeat.start()

    def release(self) -> None:
        """Stop the heartbeat and let the next run in. Does nothing when there is neither."""
        self._released.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
            self._heartbeat = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write_status(self, state: str, step: int, reason: str = "") -> None:
        """Replace status.json now. A full disk is one warning; the heartbeat tries again."""
        self._status.write(state, step, reason)

    @property
    def step(self) -> int:
        """The step that was last reported."""
        return self._status.step

    def progress(self, step: int) -> None:
        """Note the step for the next heartbeat; costs nothing."""
        self._status.step = step

    def read_status(self) -> dict[str, Any] | None:
        """The status any run left here, None if none did."""
        return self._read(self.status_path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace config.json. Raises WorkdirError."""
        if self.is_first:
            self._replace(self.config_path, config)

    def read_config(self) -> dict[str, Any] | None:
        """The resolved config of the run here, None if there is none. Raises WorkdirError for a damaged file."""
        return self._read(self.config_path)

    def append_manifest(self, entry: Mapping[str, Any]) -> None:
        """Add the entry of this launch to manifest.json. Raises WorkdirError."""
        if self.is_first:
            self._replace(self.manifest_path, [*self.read_manifest(), entry])

    def read_manifest(self) -> list[dict[str, Any]]:
        """The entries of all launches so far, the oldest first. Raises WorkdirError for a damaged file."""
        return self._read(self.manifest_path) or []

    def set_aside(self) -> Path | None:
        """Move what earlier runs left to `set_aside/<n>/`, where nothing reads it. None if there was nothing.

        Log files and tuning results stay. Raises WorkdirError.
        """
        # The checkpoints go first: killed in between, the next start resumes nothing instead of a part.
        names = [
            "checkpoints",
            "config.json",
            "manifest.json",
            "metrics.jsonl",
            "status.json",
            "tensorboard",
            "trackers",
        ]
        found = [name for name in names if os.path.lexists(self.path / name) and not _is_empty(self.path / name)]
        if not found:
            return None
        number = 1
        while (target := self.path / "set_aside" / str(number)).exists():
            number += 1
        try:
            target.mkdir(mode=0o700, parents=True)
            for name in found:
                os.rename(self.path / name, target / name)
            for directory in self._parts():
                directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise WorkdirError(f"{self.path} cannot be set aside: {error.strerror}.") from error
        return target

    def _status_paths(self, num_processes: int) -> list[Path]:
        own = [self.path / "status" / f"{self._process}.json"] if num_processes > 1 else []
        return [self.status_path, *own] if self.is_first else own

    def _parts(self) -> tuple[Path, ...]:
        return self.tensorboard_dir, self.logs_dir, self.checkpoints_dir, self.autotune_dir

    def _beat(self, interval_secs: float) -> None:
        while not self._released.wait(interval_secs):  # monotonic: setting the clock does not matter
            if self._lock is not None:
                self._lock.beat()
            self._status.beat()

    def _create(self, make_parent: bool) -> None:
        parent = self.path.parent
        try:
            if make_parent:
                parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            for directory in self._parts():
                directory.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as probe:
                probe.write(b"x")
        except OSError as error:
            wrong = self._what_is_wrong(error.strerror or str(error))
            raise WorkdirError(f"The workdir {self.path} cannot be used: {wrong}. Give another --workdir=.") from error

    def _what_is_wrong(self, problem: str) -> str:
        for directory in (*reversed(self.path.parents), self.path, *self._parts()):
            if os.path.lexists(directory) and not directory.is_dir():
                return f"{directory} is a file"
        missing = [parent for parent in self.path.parents if not parent.exists()]
        return f"its parent {missing[0]} does not exist" if missing else problem

    def _read(self, path: Path) -> Any:
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise WorkdirError(f"{path} cannot be read ({error}). Move it away or repair it.") from error

    def _replace(self, path: Path, document: Any) -> None:
        try:
            files.replace_json(path, document)
        except OSError as error:
            raise WorkdirError(f"{path} cannot be written: {error.strerror}. Nothing was changed.") from error


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
