import logging
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxtrain import train
from jaxtrain.callbacks import Callback
from jaxtrain.callbacks.sampling import Samples
from jaxtrain.data.codec import make_codec
from jaxtrain.errors import ConfigError
from jaxtrain.generate import generate
from jaxtrain.models.transformer import Transformer
from jaxtrain.params import load_params
from jaxtrain.tasks.language_modeling import LanguageModeling
from jaxtrain.writers.jsonl import read_lines
from tests.classifier import without_times
from tests.text_run import make_config

TYPE = "jaxtrain.callbacks.sampling:Samples"


class Source:
    codec = make_codec()

    def __len__(self):
        return 16


@pytest.fixture(scope="module")
def run():
    """A run as a callback sees it, at step 3 of a model of bytes, and the texts that were shown."""
    model = Transformer(256, 1, 16, heads=2, max_seq=24)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 2), np.int32))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32) / 4, shapes)
    return SimpleNamespace(
        config=SimpleNamespace(batch_size=8, seed=7, precision=SimpleNamespace(compute="float32")),
        task=LanguageModeling(model),
        source=Source(),
        state=SimpleNamespace(step=np.int32(3), params=params, ema=None),
        pause=lambda secs: None,
        layout=None,
    )


def shown(run, callback, steps=(3,), **changes):
    texts = []
    run = SimpleNamespace(**{**vars(run), "write_text": lambda *text: texts.append(text), **changes})
    callback.on_start(run)
    for step in steps:
        callback.on_step(run, step)
    callback.on_end(run)
    return texts


def test_each_prompt_is_continued_with_a_key_of_the_seed_and_the_step(run):
    texts = shown(run, Samples(prompts=("ab", "c"), max_new_tokens=9))
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), 2**31), 3)
    prompts = [[0, 97, 98], [0, 99]]
    made = generate(run.task, run.state.params, prompts, max_new_tokens=9, stop_tokens=(0,), key=key)
    expected = [prompt + make_codec().decode(tokens) for prompt, tokens in zip(("ab", "c"), made, strict=True)]
    assert texts == [(3, "sample 0", expected[0]), (3, "sample 1", expected[1])]
    assert texts[0][2].startswith("ab")
    assert shown(run, Samples(prompts=("ab", "c"), max_new_tokens=9)) == texts
    other = shown(run, Samples(prompts=("ab", "c"), max_new_tokens=9), state=_at(run, 4))
    assert [text for *_, text in other] != expected


def _at(run, step):
    return SimpleNamespace(**{**vars(run.state), "step": np.int32(step)})


@pytest.mark.parametrize(
    ("every", "due"), [("", [3]), ("2 steps", [2, 3]), ("1 epochs", [2, 3]), ("8 examples", [1, 2, 3])]
)
def test_samples_come_as_often_as_asked_and_once_after_the_last_step(run, every, due):
    texts = shown(run, Samples(every=every, max_new_tokens=1, temperature=0), steps=(1, 2, 3))
    assert [(step, name) for step, name, _ in texts] == [(step, "sample") for step in due]


def test_the_average_of_the_parameters_is_sampled_where_there_is_one(run):
    callback = {"prompts": "ab", "max_new_tokens": 5, "temperature": 0}
    zeros = jax.tree.map(np.zeros_like, run.state.params)
    state = SimpleNamespace(step=np.int32(3), params=run.state.params, ema=zeros)
    ((_, _, text),) = shown(run, Samples(**callback), state=state)
    assert text == "ab"  # of equal logits the first token is taken, which is the separator
    assert shown(run, Samples(**callback))[0][2] != "ab"


def test_the_first_error_is_logged_and_there_are_no_more_samples(run, caplog):
    with caplog.at_level(logging.INFO, "jaxtrain.callbacks.sampling"):
        texts = shown(run, Samples(every="1 steps", max_new_tokens=99), steps=(1, 2, 3))
    assert texts == []
    (message,) = caplog.messages
    assert message.startswith(
        "no more samples in this run: at step 1, RefusedError: Cannot generate: max_new_tokens=99"
    )


def test_its_seconds_are_taken_out_of_those_of_the_steps(run):
    paused = []
    shown(run, Samples(max_new_tokens=1), pause=paused.append)
    assert len(paused) == 1
    assert paused[0] > 0


class Unwell(Callback):
    """Makes showing a text fail from step 3 on, as anything might."""

    def on_start(self, run):
        show = run.write_text

        def fail(step, name, text):
            if step > 2:
                raise RuntimeError("the printer is on fire")
            show(step, name, text)

        run.write_text = fail


def test_a_run_whose_samples_work_and_then_fail_has_the_losses_of_one_without(text_run, tmp_path, caplog):
    config = make_config(tmp_path)
    config.callbacks.unwell = {"type": "tests.callbacks.sampling_test:Unwell"}
    config.callbacks.sample = {"type": TYPE, "every": "1 steps", "prompts": ("def ",), "max_new_tokens": 20}
    with caplog.at_level(logging.INFO):
        result = train(config, tmp_path / "run")
    samples = [message.split("  ")[0] for message in caplog.messages if "sample: def " in message]
    assert samples == ["step 1/6", "step 2/6"]
    assert len([message for message in caplog.messages if "the printer is on fire" in message]) == 1
    without = read_lines(text_run / "metrics.jsonl")
    assert [without_times(line) for line in result.history] == [without_times(line) for line in without]
    jax.tree.map(np.testing.assert_array_equal, result.state.params, load_params(text_run))


@pytest.mark.parametrize("every", ["2 minutes", "9 tokens", "often"])
def test_a_period_that_means_nothing_is_refused_before_training(tmp_path, every):
    config = make_config(tmp_path)
    config.callbacks.sample = {"type": TYPE, "every": every}
    with pytest.raises(ConfigError, match=r"--config\.callbacks\.sample\.type"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


class Recording:
    """A layout that notes which names it is asked of."""

    def __init__(self):
        self.names = set()

    def constrain(self, x, names):
        self.names.add(names)
        return x

    def splits(self, name, size):
        return False


def test_samples_are_written_under_the_layout_of_the_run(run):
    layout = Recording()
    assert shown(run, Samples(max_new_tokens=2), layout=layout) == shown(run, Samples(max_new_tokens=2))
    assert ("batch", "seq", "vocab") in layout.names
