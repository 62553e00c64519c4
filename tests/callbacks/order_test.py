"""The literal order in which a run does its things and tells its callbacks."""

import inspect

import pytest

from jaxtrain.callbacks import Callback
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.preemption import Signals
from jaxtrain.reporting import Reporter
from jaxtrain.train import Loop, train
from tests.classifier import make_config, rows

# Indented: what callbacks hear. Steps 2 and 4 have a log point, 2 and 4 a checkpoint; "often" is evaluated every second
# step, "late" at the end.
FIRST_LAUNCH = """
  start
  batch 1
step 1
  step 1
  batch 2
step 2
log 2
  log 2
save 2
evaluate often 2
  eval often 2
  step 2
  batch 3
step 3
  checkpoint 2
  step 3
save 3
  checkpoint 3
"""
SECOND_LAUNCH = """
  start
  batch 4
step 4
log 4
  log 4
save 4
evaluate often 4
  eval often 4
evaluate late 4
  eval late 4
  step 4
  checkpoint 4
  end
"""


class Told(Callback):
    """Writes down every call with its step and name."""

    def __init__(self, events):
        self.events = events


def note(name):
    def method(self, run, *arguments):
        step_or_name = [str(argument) for argument in arguments if isinstance(argument, str | int)]
        self.events.append(" ".join(["  " + name.removeprefix("on_"), *reversed(step_or_name)]))

    return method


for name, _ in inspect.getmembers(Callback, inspect.isfunction):
    setattr(Told, name, note(name))


@pytest.fixture
def events(monkeypatch):
    """What the built-in parts do; each save is waited for, so that the step that learns of it is always the next."""
    events = []

    def spied(cls, name, tell, after=lambda self: None):
        function = getattr(cls, name)

        def spy(self, *arguments, **keywords):
            tell(self, *arguments)
            result = function(self, *arguments, **keywords)
            after(self)
            return result

        monkeypatch.setattr(cls, name, spy)

    spied(Reporter, "keep", lambda self, step, *rest: events.append(f"log {step}"))
    spied(Checkpoints, "save", lambda self, step, *rest: events.append(f"save {step}"), after=Checkpoints.wait)
    spied(Loop, "count_step", lambda self, *rest: events.append(f"step {self.pace.step + 1}"))
    spied(Loop, "evaluate_one", lambda self, evaluation: events.append(f"evaluate {evaluation.name} {self.pace.step}"))
    return events


def launch(events, workdir, stop_at=None):
    """Run until step `stop_at` was made, and give what happened."""
    signals = Signals()

    class Stop(Callback):
        def on_step(self, run, step):
            if step == stop_at:
                signals.requested = "SIGTERM"

    events.clear()
    config = make_config(duration="4 steps", log={"every": "2 steps"}, checkpoint={"every": "2 steps"})
    config.evals.often = {"every": "2 steps", "data": {"type": rows(8, seed=1)}}
    config.evals.late = {"data": {"type": rows(8, seed=1)}}
    config.callbacks = {"told": {"type": Told(events)}, "stop": {"type": Stop()}}
    train(config, workdir, signals=signals)
    return "\n" + "\n".join(events) + "\n"


def test_the_order_of_everything(events, tmp_path):
    assert launch(events, tmp_path / "w", stop_at=3) == FIRST_LAUNCH
    assert launch(events, tmp_path / "w") == SECOND_LAUNCH
