"""Weights & Biases. Its API key is read from the environment (WANDB_API_KEY) or ~/.netrc by the library itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxtrain.redact import redact

_FINISH_SECS = 8.0  # less than the run waits for its writers


class WandB:
    """One run of a project, which every launch of a workdir goes on with.

    mode: "offline" writes `trackers/wandb` of the workdir, for `wandb sync`.   entity: user or team; "" for one's own.
    Only the lines and the config are sent: no code, console output, command line, packages or machine statistics.
    Raises ImportError if the package is missing, and whatever wandb.init raises.
    """

    def __init__(
        self,
        project: str,
        workdir: Path,
        run_id: str,
        name: str,
        config: Mapping[str, Any],
        mode: Literal["online", "offline", "disabled"] = "online",
        entity: str = "",
    ):
        try:
            import wandb
        except ImportError as error:
            raise ImportError(f"{error}; pip install 'jaxtrain[trackers]' installs it") from error
        self._make_image = wandb.Image
        settings = wandb.Settings(
            console="off",
            disable_git=True,
            finish_timeout=_FINISH_SECS,
            login_timeout=1,  # without a key it would wait at the terminal for one
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=project,
            entity=entity or None,
            dir=workdir / "trackers",
            id=run_id,
            name=name or None,
            config=dict(config),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
        # Its own step must rise with every call, which that of a resumed run does not.
        self._run.define_metric("*", step_metric="step")

    def write_scalars(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> None:
        self._run.log({"step": step, **{f"{split}/{redact(key)}": value for key, value in scalars.items()}})

    def write_text(self, step: int, name: str, text: str) -> None:
        self._run.log({"step": step, redact(name): redact(text)})

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        shown = image[..., 0] if image.shape[2] == 1 else image
        self._run.log({"step": step, redact(name): self._make_image(shown)})

    def close(self) -> None:
        self._run.finish()
