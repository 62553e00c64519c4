import inspect
import json
from types import SimpleNamespace

import pytest

from jaxtrain.callbacks import Callback, Callbacks, Run
from tests.classifier import Recorder, checked_config

CALLS = {
    "on_start": (),
    "on_batch": (3, {"image": None}),
    "on_step": (3,),
    "on_log": (3, {"loss": 1.0}),
    "on_checkpoint": (3,),
    "on_eval": (3, "test", {"loss": 1.0}),
    "on_end": (),
    "on_error": (ValueError(),),
}


class Told(Callback):
    """Writes down every call. `config` comes from the trainer."""

    def __init__(self, name, told, config=None):
        self.name, self.told, self.config = name, told, config

    def note(self, what, *arguments):
        self.told.append((self.name, what, *arguments))


for name in CALLS:
    setattr(Told, name, lambda self, run, *arguments, name=name: self.note(name, run, *arguments))


class OnlyEnd(Callback):
    def on_end(self, run):
        run.ended = True


def experiment(**callbacks):
    config = checked_config(callbacks={name: {"type": callback} for name, callback in callbacks.items()})
    evaluation = SimpleNamespace(name="test", source="held out")
    return SimpleNamespace(
        config=config, task="task", source="examples", evaluations=[evaluation], num_steps=12, layout="layout"
    )


def test_the_protocol_is_complete():
    methods = {name for name, _ in inspect.getmembers(Callback, inspect.isfunction)}
    assert methods == set(CALLS)
    assert methods <= {name for name, _ in inspect.getmembers(Callbacks, inspect.isfunction)}


@pytest.mark.parametrize("name", CALLS)
def test_callbacks_are_called_in_the_order_of_the_config_with_the_run(tmp_path, name):
    told = []
    callbacks = Callbacks(experiment(zebra=Told("zebra", told), ape=Told("ape", told)), tmp_path, "state")
    getattr(callbacks, name)(*CALLS[name])
    assert told == [(who, name, callbacks.run, *CALLS[name]) for who in ("zebra", "ape")]


@pytest.mark.parametrize("name", CALLS)
def test_a_callback_overrides_only_what_it_needs(tmp_path, name):
    callbacks = Callbacks(experiment(end=OnlyEnd()), tmp_path, "state")
    getattr(callbacks, name)(*CALLS[name])
    assert hasattr(callbacks.run, "ended") == (name == "on_end")


def test_a_step_calls_only_those_that_want_to_hear_of_steps(tmp_path):
    callbacks = Callbacks(experiment(end=OnlyEnd(), recorder=Told("recorder", [])), tmp_path, "state")
    assert [type(callback) for callback in callbacks._steppers] == [Told]
    assert [type(callback) for callback in callbacks._batchers] == [Told]


def test_scalars_are_those_that_were_added_since_the_step_began(tmp_path):
    callbacks = Callbacks(experiment(), tmp_path, "state")
    for name in ("a", "b"):
        callbacks.run.add_scalars({name: 1.0})
    assert callbacks.run.scalars == {"a": 1.0, "b": 1.0}
    callbacks.on_batch(4, None)
    assert callbacks.run.scalars == {}


def test_the_history_of_a_split_is_what_metrics_jsonl_holds_of_it(tmp_path):
    run = Callbacks(experiment(), tmp_path, "state").run
    lines = [{"step": step, "time": 0.0, "split": split} for step, split in ((2, "train"), (2, "test"), (4, "train"))]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert run.history("train") == [lines[0], lines[2]]


def test_a_run_shows_what_there_is_to_read(tmp_path):
    made = experiment()
    run = Callbacks(made, tmp_path, "state").run
    assert (run.config, run.workdir, run.task, run.source) == (made.config, tmp_path, "task", "examples")
    assert (run.eval_sources, run.num_steps, run.state) == ({"test": "held out"}, 12, "state")


def test_the_first_reason_to_stop_is_kept():
    run = Run(checked_config(), None, None, None, {}, None, None)
    assert run.stop_reason is None
    run.stop("first")
    run.stop("second")
    assert run.stop_reason == "first"


def test_a_callback_by_its_path_gets_its_options_and_the_config(tmp_path):
    config = {"type": "tests.callbacks.callback_test:Told", "name": "by path", "told": ()}
    made = SimpleNamespace(
        config=checked_config(callbacks={"told": config}),
        task=None,
        source=None,
        evaluations=[],
        num_steps=None,
        layout=None,
    )
    (callback,) = Callbacks(made, tmp_path, None)._all
    assert (callback.name, callback.config) == ("by path", made.config)


def test_the_recorder_of_other_tests_is_a_callback():
    assert isinstance(Recorder(), Callback)
