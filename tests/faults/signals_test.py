"""Rows 1 to 4 of the faults: SIGTERM, SIGUSR1 and Ctrl-C, wherever they find the run, once and twice."""

import signal
import time

import pytest

from tests.faults import trial
from tests.faults.trial import COMMAND, assert_same_run, saved_steps, status

BATCH_SIZE = 8  # of tiny.py
NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGUSR1: "SIGUSR1", signal.SIGINT: "Ctrl-C"}


def test_a_signal_while_training_saves_that_step_and_ends_with_75(cli, here, reference):
    for step, signum in zip((2, 6, 10), NAMES, strict=True):
        trial.hold(here, step)
        run = cli.start(*COMMAND)
        run.wait_for(lambda step=step: trial.is_held(here, step))
        run.send(signum)
        run.wait_for_output("stopping after this step")
        trial.release(here)
        ended = run.finish(30)
        assert ended.returncode == 75, ended.output
        assert f"stopping at step {step}: {NAMES[signum]}" in ended.stdout
        assert (status(here / "w")["state"], status(here / "w")["step"]) == ("preempted", step)
        assert status(here / "w")["reason"] == NAMES[signum]
        assert max(saved_steps(here / "w")) == step
        assert "Traceback" not in ended.output
        assert "Took over" not in ended.output
    assert cli.run(*COMMAND).returncode == 0
    assert_same_run(here / "w", reference)


@pytest.mark.parametrize(("split", "step"), [("train", 9), ("validation", 5)])
def test_sigterm_while_waiting_for_examples_is_seen(cli, here, reference, split, step):
    # Reading stops in the batch after the one of `step`, while two are read at a time.
    (here / f"block-{split}").write_text(str((step + 1) * BATCH_SIZE) if split == "train" else "0")
    trial.hold(here, step - 1)
    run = cli.start(*COMMAND)
    run.wait_for(lambda: trial.is_held(here, step - 1))
    trial.release(here)
    run.wait_for(lambda: (here / "blocked").exists())
    time.sleep(0.5)  # so that what was read ahead is used up
    sent = time.monotonic()
    run.send(signal.SIGTERM)
    ended = run.finish(30)
    assert time.monotonic() - sent < 15
    assert ended.returncode == 75, ended.output
    assert status(here / "w")["state"] == "preempted"
    stopped = status(here / "w")["step"]
    assert stopped >= step
    assert max(saved_steps(here / "w")) == stopped
    assert not [line for line in trial.lines(here / "w") if line["split"] == f'"{split}"' and split == "validation"]
    (here / f"block-{split}").unlink()
    assert cli.run(*COMMAND).returncode == 0
    assert_same_run(here / "w", reference)


def test_sigterm_with_a_save_in_flight_waits_for_it(cli, here, reference):
    command = (*COMMAND, "--config.callbacks.signal.type=tests.faults.parts:SignalWhileSaving")
    command = (*command, "--config.callbacks.signal.step=6")
    ended = cli.run(*command)
    assert (here / "in_flight").read_text() == "6.orbax-checkpoint-tmp"
    assert ended.returncode == 75, ended.output
    assert saved_steps(here / "w")[:2] == [3, 6]
    assert status(here / "w")["step"] in range(6, 12)  # a step takes less time than a signal
    assert cli.run(*command).returncode == 0
    assert_same_run(here / "w", reference)


def test_sigterm_in_the_middle_of_a_compilation_of_30_s_ends_in_3_s(cli, here):
    command = (*COMMAND, "--config.task.model.type=tests.faults.parts:SlowToCompile", "--config.compile_cache=")
    run = cli.start(*command, env={"JAX_COMPILATION_CACHE_DIR": None, "JAX_LOG_COMPILES": "1"})
    run.wait_for_output("Finished jaxpr to MLIR module conversion jit(train_step)")
    time.sleep(30)
    assert "Finished XLA compilation of jit(train_step)" not in run.stdout + run.stderr
    sent = time.monotonic()
    run.send(signal.SIGTERM)
    ended = run.finish(30)
    assert time.monotonic() - sent < 3
    assert ended.returncode == 75, ended.output
    assert status(here / "w")["state"] == "preempted"
    assert "before the first step" in status(here / "w")["reason"]
    # The next start finds the workdir left in order. It is stopped in the same place.
    run = cli.start(*command, env={"JAX_COMPILATION_CACHE_DIR": None, "JAX_LOG_COMPILES": "1"})
    run.wait_for_output("Finished jaxpr to MLIR module conversion jit(train_step)")
    run.send(signal.SIGUSR1)
    ended = run.finish(30)
    assert ended.returncode == 75, ended.output
    assert "Took over" not in ended.output


def test_a_second_signal_ends_the_run_at_once_and_the_next_start_trusts_only_what_was_saved(cli, here, reference):
    for step, signum in ((5, signal.SIGTERM), (8, signal.SIGINT)):
        trial.hold(here, step)
        run = cli.start(*COMMAND)
        run.wait_for(lambda step=step: trial.is_held(here, step))
        run.send(signum)
        run.wait_for_output("stopping after this step")
        sent = time.monotonic()
        run.send(signum)
        ended = run.finish(30)  # while the gate still holds the loop
        assert time.monotonic() - sent < 1
        assert ended.returncode == 128 + signum, ended.output
        assert "Traceback" not in ended.output
        trial.release(here)
    assert max(saved_steps(here / "w")) < 8
    ended = cli.run(*COMMAND)
    assert ended.returncode == 0, ended.output
    assert "Took over the workdir" in ended.stdout
    assert_same_run(here / "w", reference)


NOTEBOOK = """
import os, signal, threading, time
from pathlib import Path
from jaxtrain.cli import arguments
from jaxtrain.train import train

def cell(interrupts):
    def interrupt():
        for _ in range(interrupts):
            while not Path("held").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        Path("hold").unlink()
    Path("held").unlink(missing_ok=True)
    if interrupts:
        threading.Thread(target=interrupt).start()
    try:
        return train(arguments.read(["--config=tiny.py"]).draft, "w").status
    except KeyboardInterrupt:
        return "interrupted"

Path("hold").write_text("4")
print("first:", cell(1))
Path("hold").write_text("8")
print("second:", cell(2))
print("third:", cell(0))
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def test_ctrl_c_in_a_notebook_leaves_the_trainer_usable(cli, here, reference):
    ended = cli.run(command=("-c", NOTEBOOK))
    assert ended.returncode == 0, ended.output
    for line in ("first: preempted", "second: interrupted", "third: finished"):
        assert line in ended.stdout
    assert_same_run(here / "w", reference)
