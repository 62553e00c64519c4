"""The subprocess tooling itself: what it shows, when it gives up, and that it leaves nothing running."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests import runner

PYTHON = ("-c",)


def test_a_finished_program_shows_its_code_and_both_outputs(cli: runner.Runner):
    done = cli.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(75)", command=PYTHON)
    assert (done.returncode, done.stdout, done.stderr) == (75, "out\n", "err\n")


def test_a_program_gets_one_cpu_device_unless_it_asks_for_more(cli: runner.Runner):
    assert "device_count=1 " in runner.environment()["XLA_FLAGS"]
    code = "import jax; print(jax.default_backend(), jax.device_count())"
    assert cli.run(code, command=PYTHON, num_devices=4).stdout == "cpu 4\n"


def test_this_process_has_eight_devices():
    import jax

    assert jax.device_count() == 8


def test_variables_are_added_and_removed(cli: runner.Runner, monkeypatch):
    monkeypatch.setenv("GONE", "1")
    code = "import os; print(os.environ.get('ADDED'), os.environ.get('GONE'), os.getcwd())"
    done = cli.run(code, command=PYTHON, env={"ADDED": "x", "GONE": None})
    assert done.stdout == f"x None {cli.cwd}\n"


def test_a_timeout_shows_the_output_so_far(cli: runner.Runner):
    run = cli.start("import time; print('begun', flush=True); time.sleep(60)", command=PYTHON)
    run.wait_for_output("begun")
    with pytest.raises(runner.TimedOutError, match="begun"):
        run.finish(timeout_secs=0.01)
    run.send(signal.SIGTERM)
    assert run.finish().returncode == -signal.SIGTERM


def test_waiting_for_a_condition_ends_with_the_program(cli: runner.Runner):
    run = cli.start("raise SystemExit('cause')", command=PYTHON)
    with pytest.raises(AssertionError, match=r"ended with 1(.|\n)*cause"):
        run.wait_for(lambda: False)


def test_a_worker_that_outlives_its_killed_parent_is_seen_and_killed(tmp_path: Path):
    child = "import time; time.sleep(60)"
    code = (
        f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid); time.sleep(60)"
    )
    with runner.Runner(tmp_path) as programs:
        run = programs.start(code, command=PYTHON)
        run.wait_for_output("\n")
        worker = int(run.stdout)
        assert {process.pid for process in run.members()} == {run.pid, worker}
        assert run.kill().returncode == -signal.SIGKILL
        assert [process.pid for process in run.members()] == [worker]
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE


def test_the_compile_cache_is_private_and_shared(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = runner.cache_dir()
    assert path == runner.cache_dir()
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    with pytest.raises(PermissionError, match="not a private directory"):
        runner.cache_dir()
    assert Path(os.environ["XDG_CACHE_HOME"]).parent.stat().st_mode & 0o077 == 0
