"""Signals in real processes: before the first step, in the loop, twice, and in children."""

import signal
import textwrap
import threading
import time

import pytest

from jaxtrain.preemption import Signals, unblocked

# Each program installs first, as the command line does; `status` is what the callback leaves behind.
PRELUDE = """
import sys, time, os, signal, ctypes, pathlib
from jaxtrain.preemption import Signals, unblocked
signals = Signals()
signals.install()
signals.before_first_step(lambda reason: pathlib.Path("status").write_text(reason), grace_secs={grace_secs})
"""


def start(cli, code, grace_secs=60.0, **kwargs):
    program = PRELUDE.format(grace_secs=grace_secs) + textwrap.dedent(code)
    return cli.start(command=["-c", program], **kwargs)


LOOP = """
    signals.ready()
    print("ready")
    while signals.requested is None:
        time.sleep(0.01)
    print("asked", signals.requested)
    time.sleep({seconds})
    print("saved")
    sys.exit(75)
"""

C_SLEEP = """
    print("busy")
    ctypes.CDLL(None).sleep(30)
"""

# More than 30 s on two cores: XLA compiles every sort by itself.
COMPILE = """
    import jax, jax.numpy as jnp
    def slow(x):
        for i in range(700):
            x = jax.lax.sort(x * (i + 1.5))
        return x
    lowered = jax.jit(slow).lower(jnp.zeros(1000))
    print("busy")
    lowered.compile()
    print("compiled")
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_in_a_c_call_before_the_first_step_ends_with_75_and_a_status(cli, tmp_path, signum):
    run = start(cli, C_SLEEP)
    run.wait_for_output("busy")
    sent = time.monotonic()
    run.send(signum)
    assert run.finish(10).returncode == 75
    assert time.monotonic() - sent < 3
    name = "Ctrl-C" if signum == signal.SIGINT else signum.name
    assert (tmp_path / "status").read_text() == f"{name} before the first step"
    assert "The same command resumes the run" in run.stderr


def test_sigterm_in_a_compilation_ends_with_75(cli, tmp_path):
    run = start(cli, COMPILE, env={"JAX_COMPILATION_CACHE_DIR": None})
    run.wait_for_output("busy")
    time.sleep(0.3)  # into the compilation, which takes far longer
    sent = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.finish(10).returncode == 75, run.stderr
    assert time.monotonic() - sent < 3
    assert "compiled" not in run.stdout
    assert (tmp_path / "status").exists()


def test_handlers_alone_do_not_end_a_compilation(cli):
    # The negative control of the test above: a flag is not looked at before the compilation is over.
    program = PRELUDE.format(grace_secs=60).replace("install()", "install(own_process=False)")
    run = cli.start(command=["-c", program + textwrap.dedent(COMPILE)], env={"JAX_COMPILATION_CACHE_DIR": None})
    run.wait_for_output("busy")
    time.sleep(0.3)
    run.send(signal.SIGTERM)
    time.sleep(3)
    assert run.process.poll() is None
    assert "compiled" not in run.stdout


def test_sigusr2_is_counted_and_changes_nothing_about_how_a_run_stops(cli, tmp_path):
    run = start(
        cli,
        """
        print("busy")
        while signals.num_profile_requests < 1:  # before the first step, where SIGTERM would end the process
            time.sleep(0.01)
        signals.ready()
        print("ready")
        while signals.requested is None:
            time.sleep(0.01)
        print("asked", signals.requested, signals.num_profile_requests)
        while signals.num_profile_requests < 3:
            time.sleep(0.01)
        sys.exit(75)
    """,
    )
    run.wait_for_output("busy")
    run.send(signal.SIGUSR2)
    run.wait_for_output("ready")
    run.send(signal.SIGUSR2)
    time.sleep(0.3)
    run.send(signal.SIGTERM)
    run.wait_for_output("asked")
    run.wait_for_output("A second signal")
    run.send(signal.SIGUSR2)  # it is no second signal
    assert run.finish(10).returncode == 75, run.stderr
    assert "asked SIGTERM 2" in run.stdout
    assert not (tmp_path / "status").exists()


def test_a_callback_that_hangs_does_not_keep_the_process(cli):
    run = start(cli, "signals.before_first_step(lambda reason: time.sleep(60), 60)\nprint('busy')\ntime.sleep(60)")
    run.wait_for_output("busy")
    sent = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.finish(10).returncode == 75
    assert time.monotonic() - sent < 3


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_after_ready_the_loop_is_asked_and_ends_by_itself(cli, tmp_path, signum):
    run = start(cli, LOOP.format(seconds=0.1))
    run.wait_for_output("ready")
    run.send(signum)
    assert run.finish(10).returncode == 75
    assert "asked " + ("Ctrl-C" if signum == signal.SIGINT else signum.name) in run.stdout
    assert "saved" in run.stdout
    assert not (tmp_path / "status").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(cli, signum):
    run = start(cli, LOOP.format(seconds=30))
    run.wait_for_output("ready")
    run.send(signum)
    run.wait_for_output("A second signal")
    sent = time.monotonic()
    run.send(signum)
    assert run.finish(10).returncode == 128 + signum
    assert time.monotonic() - sent < 1
    assert "saved" not in run.stdout


def test_a_signal_delivered_twice_at_once_is_one(cli):
    # As `timeout` does: to the process, then to its group.
    run = start(cli, LOOP.format(seconds=0.3))
    run.wait_for_output("ready")
    run.send(signal.SIGTERM)
    time.sleep(0.003)
    run.send(signal.SIGTERM)
    assert run.finish(10).returncode == 75


def test_a_loop_that_does_not_stop_ends_after_the_grace_time(cli, tmp_path):
    run = start(cli, LOOP.format(seconds=30), grace_secs=0.5)
    run.wait_for_output("ready")
    run.send(signal.SIGTERM)
    assert run.finish(10).returncode == 75
    assert (tmp_path / "status").read_text() == "SIGTERM, and the run did not stop within preemption.grace_secs=0.5"


def test_children_do_not_inherit_the_blocked_signals(cli):
    code = """
        import subprocess, multiprocessing
        show = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
        print("plain", subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout.strip())
        with unblocked():
            inside = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout.strip()
        print("unblocked", inside)
        print("parent", len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        print("fork", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    run = start(cli, code)
    run.finish(30)
    lines = dict(line.split(" ", 1) for line in run.stdout.splitlines())
    assert "SIGTERM" in lines["plain"]  # the negative control: this is what `unblocked` is for
    assert lines["unblocked"] == "[]"
    assert lines["parent"] == "4"
    assert lines["fork"] == str(-signal.SIGTERM)


def test_a_signal_that_arrives_while_children_start_is_not_lost(cli):
    code = """
        signals.ready()
        with unblocked():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        print("asked", signals.requested)
    """
    run = start(cli, code)
    assert run.finish(10).returncode == 0
    assert "asked SIGTERM" in run.stdout


def test_uninstall_gives_masks_and_handlers_back(cli):
    code = """
        signals.uninstall()
        print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    """
    run = start(cli, code)
    assert run.finish(10).returncode == -signal.SIGTERM
    assert "0 True" in run.stdout


def test_ctrl_c_is_left_alone_where_the_shell_ignores_it(cli):
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + PRELUDE.format(grace_secs=60)
    run = cli.start(command=["-c", code + "print('busy')\ntime.sleep(1)\nprint('done')"])
    run.wait_for_output("busy")
    run.send(signal.SIGINT)
    assert run.finish(10).returncode == 0


# In a program of somebody else: a notebook, a script.


@pytest.fixture
def signals():
    listener = Signals()
    assert listener.install(own_process=False)
    yield listener
    listener.uninstall()


def test_in_a_notebook_the_first_ctrl_c_asks_and_the_second_raises(signals):
    signals.ready()
    signal.raise_signal(signal.SIGINT)
    assert signals.requested == "Ctrl-C"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_in_a_notebook_sigterm_asks(signals):
    signal.raise_signal(signal.SIGTERM)
    assert signals.requested == "SIGTERM"


def test_a_programs_own_handler_of_sigterm_stays():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    listener = Signals()
    try:
        listener.install(own_process=False)
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        assert listener.requested is None
    finally:
        listener.uninstall()
        signal.signal(signal.SIGTERM, before)


def test_handlers_are_as_before_after_uninstall(signals):
    signals.uninstall()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_outside_the_main_thread_nothing_is_installed():
    listener, results = Signals(), []
    thread = threading.Thread(target=lambda: results.append(listener.install()))
    thread.start()
    thread.join()
    assert results == [False]
    assert listener.requested is None
    listener.uninstall()


def test_unblocked_restores_the_mask():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        with unblocked():
            assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
