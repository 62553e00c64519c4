"""Which writers a run has beside `metrics.jsonl`."""

from jaxtrain.config import Config
from jaxtrain.workdir import Workdir
from jaxtrain.writers.background import Background
from jaxtrain.writers.console import Console, Progress
from jaxtrain.writers.notebook import Notebook, is_notebook
from jaxtrain.writers.tensorboard import TensorBoard
from jaxtrain.writers.writer import Writer


def open_writers(config: Config, workdir: Workdir, progress: Progress) -> list[Writer]:
    """Open what shows the lines of a run that goes on from `progress.step`.

    Only what a person watches may hold the loop up.
    """
    opened: list[Writer] = [Console(progress)]
    if is_notebook():
        opened.append(Notebook(progress))
    if config.log.tensorboard:
        purge_step = progress.step + 1
        opened.append(Background("TensorBoard", lambda: TensorBoard(workdir.tensorboard_dir, purge_step)))
    return opened
