"""Which writers a run has beside `metrics.jsonl`."""

import functools
from collections.abc import Callable
from typing import Any

from jaxtrain.config import Config, to_dict
from jaxtrain.files import redacted
from jaxtrain.workdir import Workdir
from jaxtrain.writers.background import Background
from jaxtrain.writers.console import Console, Progress
from jaxtrain.writers.notebook import Notebook, is_notebook
from jaxtrain.writers.tensorboard import TensorBoard
from jaxtrain.writers.writer import Writer


def open_writers(config: Config, workdir: Workdir, progress: Progress, build: Callable[..., Any]) -> list[Writer]:
    """Open what shows the lines of a run that goes on from `progress.step`. Only
    what a person watches may hold the loop up.

    build: jaxtrain.build.build, which stands on a higher floor.
    """
    opened: list[Writer] = [Console(progress)]
    if is_notebook():
        opened.append(Notebook(progress))
    if config.log.tensorboard:
        purge_step = progress.step + 1
        opened.append(Background("TensorBoard", lambda: TensorBoard(workdir.tensorboard_dir, purge_step)))
    for name, spec in config.log.trackers.items():
        make = functools.partial(_tracker, config, workdir, build, spec, f"log.trackers.{name}")
        opened.append(Background(f"tracker {name}", make))
    return opened


def _tracker(config: Config, workdir: Workdir, build: Callable[..., Any], spec: Any, key: str) -> Writer:
    workdir.trackers_dir.mkdir(mode=0o700, exist_ok=True)
    runtime = {"workdir": workdir.path, "run_id": _run_id(workdir), "name": config.name}
    return build(spec, key, **runtime, config=redacted(to_dict(config)))


def _run_id(workdir: Workdir) -> str:
    """The id of the run in every tracker: that of its first launch, so that a resumed run goes on in the same."""
    launches = workdir.read_manifest()
    return launches[0]["run_id"] if launches else workdir.run_id
