import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from jaxtrain.data import workers as workers_module

ROOT = Path(__file__).resolve().parents[2]

LOADING = """
import signal, sys
# As the command line does it, before anything starts a thread (NumPy's BLAS does); one thread would wait for them.
blocked = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
import numpy as np
from jaxtrain.data.pipeline import Loader

class Virtual:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return {"number": np.int32(index)}

loader = Loader(Virtual(), batch_size=2, num_workers=2)
next(loader), next(loader)  # one of each worker
print("loading", flush=True)
for line in sys.stdin:
    next(loader)
    print("batch", flush=True)
"""


@pytest.fixture
def parent():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LOADING], env=environment, text=True, **pipes)
    children = []
    try:
        line = process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        assert line == "loading\n", process.communicate()[1]
        yield process, children
    finally:
        process.kill()
        for child in children:
            if child.is_running():
                child.kill()
        process.communicate()


def workers(children):
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def signal_set(pid, field):
    """Return the signals in a mask of /proc/<pid>/status."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field)]
    mask = int(line.split()[1], 16)
    return {signal.Signals(number) for number in (2, 10, 12, 15) if mask >> (number - 1) & 1}


def test_workers_read_on_after_signals_to_the_whole_job_and_end_with_their_parent(parent):
    process, children = parent
    reading = workers(children)
    assert len(reading) == 2
    for worker in reading:
        assert signal_set(worker.pid, "SigBlk") == set()
        assert signal_set(worker.pid, "SigIgn") == {signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
    for child in children:
        for number in (signal.SIGINT, signal.SIGUSR2, signal.SIGTERM):
            child.send_signal(number)
    process.send_signal(signal.SIGTERM)  # blocked in every thread of it, also after multiprocessing's tracker started
    for _ in range(30):
        process.stdin.write("next\n")
        process.stdin.flush()
        assert process.stdout.readline() == "batch\n"

    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert len(gone) == 3  # with the tracker


def test_a_worker_that_got_sigterm_ends_after_the_grace_time():
    code = """
import os, signal, time
from jaxtrain.data import workers
workers._SIGTERM_GRACE_SECS = 1
workers._take_signals()
os.kill(os.getpid(), signal.SIGTERM)
print("goes on", flush=True)
time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("goes on\n", -signal.SIGALRM)


def test_flags_are_marked_parsed_only_when_nobody_has_parsed_them(monkeypatch):
    marked = []
    for parsed in (True, False):
        flags = types.SimpleNamespace(is_parsed=lambda parsed=parsed: parsed, mark_as_parsed=lambda: marked.append(1))
        monkeypatch.setattr(workers_module, "flags", types.SimpleNamespace(FLAGS=flags))
        workers_module.prepare_parent()
    assert marked == [1]
