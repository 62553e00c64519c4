"""Samples: what a language model writes while it trains."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxtrain.callbacks.callback import Callback, Run
from jaxtrain.data.codec import make_codec
from jaxtrain.duration import Duration, Every
from jaxtrain.generate import generate
from jaxtrain.models.logical import laid_out
from jaxtrain.step import cast, eval_params

_logger = logging.getLogger(__name__)
_STREAM = 2**31  # folded into the run's seed first: the keys of training are those of int32 steps


class Samples(Callback):
    """Continues the prompts every so often and after the last step, and shows the texts in the log and the writers.

    It cannot hurt the run: the first error is logged, and there are no more samples. What it draws depends on the seed
    of the run and the step alone.

    prompts: texts; each begins behind the token that separates the texts of the training data.
    every: steps, epochs or examples between samples; "" samples after the last step only.
    max_new_tokens, temperature, top_k, top_p: as in `jaxtrain.generate`; a text ends at the next separator.
    tokenizer: "bytes" or a tokenizers JSON file; "" takes that of the training data.
    """

    def __init__(
        self,
        prompts: Sequence[str] = ("",),
        every: str = "",
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        tokenizer: str = "",
    ):
        self.prompts = (prompts,) if isinstance(prompts, str) else tuple(prompts)
        self.every = Duration.parse(every)
        if self.every is not None and self.every.unit not in ("steps", "epochs", "examples"):
            raise ValueError(f'every="{every}": use steps, epochs or examples')
        self.max_new_tokens = max_new_tokens
        self.choice: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        self.tokenizer = tokenizer
        self._due: Callable[[int], bool] = lambda step: False
        self._last_step: int | None = None
        self._has_failed = False

    def on_start(self, run: Run) -> None:
        self._due = Every(self.every, run.config.batch_size, len(run.source)).due

    def on_step(self, run: Run, step: int) -> None:
        if self._due(step):
            self._show(run, step)

    def on_end(self, run: Run) -> None:
        if (step := int(run.state.step)) != self._last_step:
            self._show(run, step)

    def _show(self, run: Run, step: int) -> None:
        if self._has_failed:
            return
        started = time.monotonic()
        try:
            for number, text in enumerate(self._texts(run, step)):
                run.write_text(step, f"sample {number}" if len(self.prompts) > 1 else "sample", text)
            self._last_step = step
        except Exception as error:  # noqa: BLE001  whatever it is, a run is worth more than its samples
            self._has_failed = True
            _logger.warning("no more samples in this run: at step %d, %s: %s", step, type(error).__name__, error)
        run.pause(time.monotonic() - started)

    def _texts(self, run: Run, step: int) -> list[str]:
        codec = make_codec(self.tokenizer) if self.tokenizer else run.source.codec
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(run.config.seed), _STREAM), step)
        with laid_out(run.layout):
            made = generate(
                run.task,
                cast(eval_params(run.state), run.config.precision.compute),
                [[codec.separator, *codec.encode(prompt)] for prompt in self.prompts],
                max_new_tokens=self.max_new_tokens,
                stop_tokens=(codec.separator,),
                key=key,
                **self.choice,
            )
        return [prompt + codec.decode(tokens) for prompt, tokens in zip(self.prompts, made, strict=True)]
