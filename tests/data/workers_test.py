import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

LOADING = """
import signal, sys
# As the command line does it, before anything starts a thread (NumPy's BLAS does); one thread would wait for them.
blocked = {signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
import numpy as np
from jaxtrain.data.pipeline import Loader

class Virtual:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return {"number": np.int32(index)}

loader = Loader(Virtual(), batch_size=2, num_workers=2)
next(loader)
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
    return {signal.Signals(number) for number in (2, 10, 15) if mask >> (number - 1) & 1}


def test_workers_end_when_their_parent_is_killed(parent):
    process, children = parent
    assert len(workers(children)) == 2
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert len(gone) >= 3  # with the tracker of shared memory


def test_signals_sent_to_the_whole_job_leave_the_workers_reading(parent):
    process, children = parent
    for worker in workers(children):
        assert signal_set(worker.pid, "SigBlk") == set()
        assert signal_set(worker.pid, "SigIgn") == {signal.SIGINT, signal.SIGUSR1}
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            worker.send_signal(number)
    for child in [process, *[child for child in children if child not in workers(children)]]:
        child.send_signal(signal.SIGTERM)  # blocked in the parent, ignored by the tracker
    for _ in range(30):
        process.stdin.write("next\n")
        process.stdin.flush()
        assert process.stdout.readline() == "batch\n"
    assert len(workers(children)) == 2
