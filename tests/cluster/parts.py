"""What goes wrong in one process of several."""

from pathlib import Path

import jax

from jaxtrain.callbacks import Callback


class Trouble(Callback):
    """Raises after the step that the file `raise-<process>` names."""

    def on_step(self, run, step):
        path = Path(f"raise-{jax.process_index()}")
        if path.exists() and path.read_text().strip() == str(step):
            raise RuntimeError("out of coffee")
