import io
import logging
import os
import pty
import subprocess
import sys

import pytest

from jaxtrain.writers.console import Console
from tests.runner import ROOT


class Progress:
    def __init__(self, step=0, secs=0.0, num_steps=None, max_secs=None):
        self.step, self.secs, self.num_steps, self.max_secs = step, secs, num_steps, max_secs


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


TRAIN = {
    "loss": 2.34567,
    "accuracy": 0.5,
    "grad_norm": 1.25,
    "learning_rate": 9.8e-4,
    "skipped": 0,
    "empty": 0,
    "step_secs": 0.5,
    "data_wait_secs": 0.01,
    "examples_per_sec": 64.0,
    "examples_seen": 38400,
    "tokens_per_sec": 133_000.0,
    "tokens_seen": 10**9,
}


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_train_line_says_loss_rate_throughput_and_eta(lines):
    clock, progress = Clock(), Progress(step=1000, num_steps=5000)
    console = Console(progress, io.StringIO(), clock)
    clock.now, progress.step = 400.0, 1600  # half a second a step, evaluations included; 3400 steps to go
    console.write_scalars(1500, "train", TRAIN, 0.0)
    assert lines() == [
        "step 1500/5000  loss 2.346  lr 9.80e-04  accuracy 0.5  grad_norm 1.25  133k tokens/s  eta 28m20s"
    ]


def test_what_is_not_as_it_should_be_is_shown(lines):
    console = Console(Progress(), io.StringIO())
    scalars = TRAIN | {"skipped": 2, "data_wait_secs": 0.2, "loss": float("nan")}
    del scalars["tokens_per_sec"]
    console.write_scalars(7, "train", scalars, 0.0)
    [line] = lines()
    assert line.startswith("step 7  loss nan")
    assert line.endswith("skipped 2  64 examples/s  waiting for data 40%")


def test_an_evaluation_names_its_split(lines):
    Console(Progress(num_steps=5000), io.StringIO()).write_scalars(
        10, "validation", {"accuracy": 0.5, "loss": 1.5}, 0.0
    )
    assert lines() == ["step   10/5000  validation  loss 1.5  accuracy 0.5"]


def test_texts_and_images_are_told(lines):
    console = Console(Progress(), io.StringIO())
    console.write_text(3, "sample", "once upon a time")
    console.write_image(3, "picture", None)
    console.write_text(4, "sample", "once\n  upon")
    assert lines() == [
        "step 3  sample: once upon a time",
        "step 3  picture: an image, see TensorBoard",
        "step 4  sample:\nonce\n  upon",
    ]


@pytest.mark.parametrize(
    ("num_steps", "max_secs", "left"),
    [(5000, None, 1700.0), (None, 1000.0, 700.0), (5000, 1000.0, 700.0), (5000, 9000.0, 1700.0), (None, None, None)],
)
def test_the_end_is_what_comes_first(num_steps, max_secs, left):
    clock, progress = Clock(), Progress(step=1000, num_steps=num_steps, max_secs=max_secs)
    console = Console(progress, io.StringIO(), clock)
    clock.now, progress.step, progress.secs = 400.0, 1600, 300.0
    assert console.secs_left() == left


def test_before_the_first_step_there_is_no_eta():
    assert Console(Progress(num_steps=10), io.StringIO()).secs_left() is None


PROGRAM = """
import logging, sys, time
from jaxtrain.workdir.logs import _TerminalHandler, _TerseFormatter
from jaxtrain.writers.console import Console
handler = _TerminalHandler()
handler.setFormatter(_TerseFormatter())
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.INFO)
class Progress: step, secs, num_steps, max_secs = 0, 0.0, 4321, None
console = Console(Progress)
for Progress.step in range(1, 4):
    time.sleep(0.3)
    console.write_scalars(Progress.step, "train", {"loss": 0.5}, 0.0)
    print("a print")
console.close()
print("the end")
"""


def on_a_terminal(**env):
    """The bytes PROGRAM writes to a terminal of 100 columns."""
    leader, follower = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100", **env}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=follower, stderr=follower, env=env)
    os.close(follower)
    output = b""
    try:
        while chunk := os.read(leader, 65536):
            output += chunk
    except OSError:  # how a terminal tells that the other side is gone
        pass
    os.close(leader)
    assert process.wait() == 0
    return output.decode()


def test_statistics_of_groups_are_not_shown(caplog):
    caplog.set_level("INFO")
    Console(Progress(num_steps=9)).write_scalars(1, "train", {"loss": 0.5, "grads/Dense_0/norm": 2.0}, 0.0)
    assert "loss 0.5" in caplog.text
    assert "grads" not in caplog.text


def test_on_a_terminal_a_bar_moves_below_whole_lines():
    output = on_a_terminal()
    assert "━" in output
    assert "\x1b[2K" in output  # erases the bar before each line
    for step in (1, 2, 3):
        assert f"step    {step}/4321  loss 0.5  eta " in output
    assert output.count("a print") == 3
    assert output.rstrip().endswith("the end")
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")  # the cursor is not left hidden
    assert output.find("\x1b[?25h") < output.find("step    1/4321  loss")  # nor would a kill leave it so


def test_elsewhere_there_are_only_lines():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, env=env, text=True, check=True)
    assert "\x1b" not in output.stdout + output.stderr
    assert "━" not in output.stdout
    assert len(output.stdout.splitlines()) == 7


def test_on_a_dumb_terminal_there_are_only_lines():
    assert "━" not in on_a_terminal(TERM="dumb")
