"""Row 5 of the faults for the checkpoints alone: SIGKILL at each stage of a save and of a deletion."""

import signal

import jax.numpy as jnp
import numpy as np

from jaxtrain import compat
from jaxtrain.checkpoint import Checkpoints

PROGRAM = """
import os, signal, sys
import jax.numpy as jnp
from jaxtrain.checkpoint import Checkpoints, manager, manifest, retention

directory, when = sys.argv[1:]
checkpoints = Checkpoints(directory, keep_last=1)

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def half_a_manifest(path, content):
    (path / manifest.FILE_NAME).write_text("{")
    die()

for step in (1, 2, 3):
    if step == 3 and when == "before the manifest":
        manifest.write = die
    if step == 3 and when == "inside the manifest":
        manifest.write = half_a_manifest
    if step == 3 and when == "before the rename":
        original = manifest.write
        manifest.write = lambda *arguments: (original(*arguments), die())
    if step == 3 and when == "inside a deletion":
        retention.shutil.rmtree = die
    checkpoints.save(step, {"w": jnp.full((1000, 100), float(step))}, {})
    if step < 3 or when != "while writing":
        checkpoints.wait()
        print("committed", checkpoints.poll(), flush=True)
print("writing", flush=True)
checkpoints.close()
"""


def test_a_killed_save_leaves_the_newest_committed_one_usable(cli, tmp_path):
    moments = ["while writing", "before the manifest", "inside the manifest", "before the rename", "inside a deletion"]
    for batch in (moments[:3], moments[3:]):
        runs = {when: cli.start(str(tmp_path / when), when, command=("-c", PROGRAM)) for when in batch}
        for when, run in runs.items():
            if when == "while writing":
                run.wait_for_output("writing")
                run.send(signal.SIGKILL)
            assert run.finish().returncode == -signal.SIGKILL, run.stderr
            reported = max(int(line.split()[1]) for line in run.stdout.splitlines() if "committed" in line)
            names = {path.name for path in (tmp_path / when).iterdir()}
            if when in ("before the manifest", "inside the manifest", "before the rename"):
                assert f"3{compat.ORBAX_TMP_SUFFIX}" in names
            if when == "inside a deletion":
                assert any(name.endswith(".deleted") for name in names)
            checkpoints = Checkpoints(tmp_path / when, keep_last=1)
            found = checkpoints.newest()
            assert found.step >= reported >= 2
            restored = checkpoints.restore(found.step, {"w": jnp.zeros((1000, 100))})
            np.testing.assert_array_equal(restored["w"], float(found.step))
            checkpoints.close()
            assert {path.name for path in (tmp_path / when).iterdir()} <= {"1", "2", "3"}
