"""Starting a run again: where it goes on, what must be as before, and the record of its launches."""

import dataclasses
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxtrain.build.defaults import default_of
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.config import Config, drift, to_dict
from jaxtrain.errors import WorkdirError
from jaxtrain.evaluate import Evaluation
from jaxtrain.experiment import Experiment
from jaxtrain.pace import Pace
from jaxtrain.workdir import Workdir
from jaxtrain.writers.jsonl import read_lines

_logger = logging.getLogger(__name__)

# Of `describe_launch`: what processes that train together must have in common.
SAME_IN_ALL_PROCESSES = ("git", "versions", "mesh", "data", "seed")
_PACKAGES = ("jaxtrain", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a launch begins: what the host keeps in a checkpoint beside the state.

    position: examples consumed, the number of the next one.   secs, previous_secs: time of training in earlier
    launches, after this step and after the one before.
    num_bad: examples that could not be read.   unwritten: (split, step) of lines that a full disk kept in memory.
    """

    step: int = 0
    position: int = 0
    secs: float = 0.0
    previous_secs: float = 0.0
    num_bad: int = 0
    unwritten: Sequence[tuple[str, int]] = ()


def newest(checkpoints: Checkpoints) -> dict[str, Any]:
    """Give what the newest checkpoint that verifies says of its place in the run; nothing for a new run."""
    found = checkpoints.newest()
    return {} if found is None else dict(found.manifest.info)


def start_from(info: Mapping[str, Any]) -> Start:
    """Give the beginning, or where a checkpoint was made."""
    return Start(**info)


def tell_lost_lines(start: Start, has_line: Callable[[str, int], bool]) -> None:
    """Name the lines that the launch before had made by then, and could not write before it was killed."""
    lost = [f"{split} {step}" for split, step in start.unwritten if not has_line(split, step)]
    if lost:
        _logger.warning("metrics.jsonl lacks these lines, which a full disk kept from it: %s", ", ".join(lost))


def is_complete(workdir: Workdir, config: Config, pace: Pace, evaluations: Sequence[Evaluation]) -> bool:
    """Is there nothing left to do? Not while an evaluation of the last step has no line yet."""
    if not pace.step:
        return False
    status, old = workdir.read_status() or {}, workdir.read_config() or {}
    ended_early = (status.get("state"), status.get("step")) == ("finished", pace.step)  # as a callback asked for
    if not pace.is_over and not (ended_early and old.get("duration") == config.duration):
        return False
    lines = read_lines(workdir.metrics_path) if workdir.metrics_path.exists() else ()
    present = {line["split"] for line in lines if line["step"] == pace.step}
    return present >= {evaluation.name for evaluation in evaluations}


def refuse_drift(workdir: Workdir, config: Config, launch: Mapping[str, Any], allow: bool) -> None:
    """Compare this launch with the run in the workdir.

    Another model, data, seed or batch raises WorkdirError with what differs and where the new run could live; `allow`
    makes a notice of it. Another schedule or length is a notice, as are other versions or code. An option that only one
    of them gives is compared with its default in the other.
    """
    old = workdir.read_config()
    if old is None:
        return
    changes = drift.compare(old, to_dict(config), default_of)
    refused = [str(change) for change in changes if change.severity == "refused"]
    for change in changes:
        if change.severity == "notice":
            _logger.warning("changed since the last launch: %s", change)
    previous = workdir.read_manifest()[-1:]
    if previous:
        refused += _data_changes(previous[0], launch, config, {change.key for change in changes})
        for notice in _environment_changes(previous[0], launch):
            _logger.warning("changed since the last launch: %s", notice)
    if not refused:
        return
    if allow:
        _logger.warning("allowed to differ from the run so far: %s", "; ".join(refused))
        return
    differing = "\n".join(f"  {line}" for line in refused)
    raise WorkdirError(
        f"The workdir {workdir.path} holds another run; these differ:\n{differing}\n"
        f"Start a run of its own with --workdir={_free_name(workdir.path)}, continue this one as it is now with "
        "--allow_drift, or set it aside and begin anew with --fresh."
    )


def describe_launch(experiment: Experiment) -> dict[str, Any]:
    """Give the entry of manifest.json for this launch."""
    devices = experiment.mesh.devices.flatten()
    commit, dirty = _git_state()
    sources = {"data": experiment.source} | {f"evals.{e.name}.data": e.source for e in experiment.evaluations}
    return {
        "time": time.time(),
        "user": os.environ.get("USER") or str(os.getuid()),
        "argv": sys.argv,
        "git": {"commit": commit, "dirty": dirty},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "devices": {"kind": devices[0].device_kind, "platform": devices[0].platform, "count": len(devices)},
        "num_processes": jax.process_count(),
        "mesh": dict(experiment.mesh.shape),
        "data": {key: _describe_source(source) for key, source in sources.items()},
        "seed": experiment.config.seed,
    }


def _describe_source(source: Any) -> dict[str, Any]:
    fingerprint = source.fingerprint() if hasattr(source, "fingerprint") else None
    return {"num_examples": len(source), "fingerprint": fingerprint}


def _data_changes(old: Mapping[str, Any], new: Mapping[str, Any], config: Config, changed: set[str]) -> list[str]:
    """The data sets whose content is another one though the config says the same. `changed`: keys that differ."""
    before, now = old.get("data", {}), new["data"]
    return [
        f"the content of --config.{key} ({_where(config, key)}): {json.dumps(before[key])} became "
        f"{json.dumps(now[key])}"
        for key in now
        if key in before and before[key] != now[key] and not any(other.startswith(f"{key}.") for other in changed)
    ]


def _where(config: Config, key: str) -> str:
    """The texts among the options of a source: its files are named there."""
    spec = config.data if key == "data" else config.evals[key.split(".")[1]].data
    return ", ".join(f"{name}={value}" for name, value in spec.options.items() if isinstance(value, str | list | tuple))


def _environment_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    notices = [
        f"{name} {old.get('versions', {}).get(name)} -> {version}"
        for name, version in new["versions"].items()
        if old.get("versions", {}).get(name) != version
    ]
    notices += [
        f"{key} {old[key]} -> {new[key]}" for key in ("git", "devices", "mesh") if key in old and old[key] != new[key]
    ]
    return notices


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git_state() -> tuple[str | None, bool | None]:
    """The commit of the working directory and whether files differ from it; None outside a repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _free_name(path: Path) -> Path:
    number = 2
    while (candidate := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return candidate
