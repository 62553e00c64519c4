"""What a notebook shows below the cell that trains: a bar and the newest numbers of each split, updated in place."""

import html
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxtrain.redact import redact
from jaxtrain.writers.console import Progress, shown_metrics

_UPDATE_SECS = 0.25


def is_notebook() -> bool:
    """Is this the kernel of a notebook, as Jupyter, VS Code and Colab start one?"""
    try:
        from IPython.core.getipython import get_ipython  # comes with every kernel; elsewhere it need not be there
    except ImportError:
        return False
    # Colab's own shell is a subclass with a name of its own.
    return any(cls.__name__ == "ZMQInteractiveShell" for cls in type(get_ipython()).__mro__)


class Notebook:
    """One output that is replaced by each line, at most four times a second, and at the end.

    show: gets (the content by MIME type, whether it is the first); by default IPython's display.
    """

    def __init__(
        self,
        progress: Progress,
        show: Callable[[dict[str, str], bool], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._progress = progress
        self._show = show or _Display().show
        self._clock = clock
        self._shown = clock()
        self._newest: dict[str, tuple[int, Mapping[str, float]]] = {}
        self._show(self._content(), True)

    def write_scalars(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> None:
        self._newest[split] = (step, dict(scalars))
        if self._clock() - self._shown >= _UPDATE_SECS:
            self._shown = self._clock()
            self._show(self._content(), False)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Leave texts to the log lines, which the cell prints too."""

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        """Leave images to TensorBoard."""

    def close(self) -> None:
        self._show(self._content(), False)

    def _content(self) -> dict[str, str]:
        """The same as text and as HTML."""
        step, total = self._progress.step, self._progress.num_steps
        at = f"step {step}" if total is None else f"step {step}/{total}"
        rows = [
            (f"{split} {step}", redact("  ".join(shown_metrics(scalars))))
            for split, (step, scalars) in self._newest.items()
        ]
        bar = "" if total is None else f'<progress value="{step}" max="{total}" style="width:20em"></progress> '
        table = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in rows)
        return {
            "text/plain": "\n".join([at, *(f"{name}  {text}" for name, text in rows)]),
            "text/html": f"<div>{bar}{at}<table>{table}</table></div>",
        }


class _Display:
    """IPython's display of a thing that is updated."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, content: dict[str, str], is_first: bool) -> None:
        from IPython.display import DisplayHandle  # of a kernel, which is there if this is

        if is_first:
            self._handle = DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)
