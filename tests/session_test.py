import json
import logging
import signal

import pytest

from jaxtrain import session
from jaxtrain.errors import DataError, NonFiniteError, StoppedError, WorkdirError
from jaxtrain.preemption import Signals
from tests.classifier import checked_config


@pytest.fixture(scope="module")
def config():
    return checked_config(name="mine")


def read(path):
    return json.loads(path.read_text())


def test_the_default_workdir_is_named_after_the_run(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    with session.opened(config, None, None) as here:
        assert here.workdir.path == tmp_path / "runs" / "mine"
    with session.opened(checked_config(), None, None) as here:
        assert here.workdir.path == tmp_path / "runs" / "unnamed"


def test_a_second_run_in_the_workdir_is_refused_until_the_first_has_ended(tmp_path, config):
    with session.opened(config, tmp_path / "w", None) as first:
        first.begin(config, {}, 0)
        before = read(tmp_path / "w" / "status.json")
        with pytest.raises(WorkdirError), session.opened(config, tmp_path / "w", None):
            pass
        assert read(tmp_path / "w" / "status.json") == before
    with session.opened(config, tmp_path / "w", None):
        pass


def test_a_launch_that_begins_is_written_down(tmp_path, config):
    with session.opened(config, tmp_path / "w", None) as here:
        assert not (tmp_path / "w" / "config.json").exists()
        here.begin(config, {"argv": ["x"]}, 7)
        assert read(here.workdir.config_path)["name"] == "mine"
        assert read(here.workdir.manifest_path) == [{"argv": ["x"], "run_id": here.workdir.run_id, "step": 7}]
        assert (read(here.workdir.status_path)["state"], read(here.workdir.status_path)["step"]) == ("starting", 7)
        here.workdir.progress(9)
        here.end("finished", "all done")
    status = read(tmp_path / "w" / "status.json")
    assert (status["state"], status["step"], status["reason"]) == ("finished", 9, "all done")


@pytest.mark.parametrize(("step", "told"), [(0, "a new run"), (7, "goes on after step 7")])
def test_a_launch_says_where_it_writes_and_from_where_it_goes_on(tmp_path, capsys, config, step, told):
    with session.opened(config, tmp_path / "w", None) as here:
        here.begin(config, {}, step)
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'w'}: {told}\n")


def end_by(error, config, workdir):
    """A run that has begun and is ended by an exception."""
    with session.opened(config, workdir, None) as here:
        here.begin(config, {}, 0)
        raise error


@pytest.mark.parametrize(
    ("error", "state", "has_traceback"),
    [
        (NonFiniteError("nan"), "nonfinite", False),
        (StoppedError("gone"), "preempted", False),
        (KeyboardInterrupt(), "preempted", True),
        (DataError("no file"), "failed", False),
        (ZeroDivisionError("oh"), "failed", True),
    ],
)
def test_every_end_is_in_the_status_and_an_unexpected_one_has_its_traceback_in_the_log(
    tmp_path, capsys, config, error, state, has_traceback
):
    with pytest.raises(type(error)):
        end_by(error, config, tmp_path / "w")
    status = read(tmp_path / "w" / "status.json")
    assert (status["state"], status["reason"]) == (state, f"{type(error).__name__}: {error}")
    assert ("Traceback" in (tmp_path / "w" / "logs" / "process-0.log").read_text()) == has_traceback
    assert "Traceback" not in capsys.readouterr().out  # whoever called shows the exception


def test_a_refusal_before_the_run_began_leaves_the_status_of_the_run_before(tmp_path, config):
    with session.opened(config, tmp_path / "w", None) as here:
        here.begin(config, {}, 3)
        here.end("finished")
    before = read(tmp_path / "w" / "status.json")
    with pytest.raises(WorkdirError, match="another run"), session.opened(config, tmp_path / "w", None):
        raise WorkdirError("it holds another run")
    assert read(tmp_path / "w" / "status.json") == before


def test_handlers_and_loggers_are_as_before_also_after_an_error(tmp_path, config):
    def now():
        return [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], list(logging.getLogger().handlers)

    before = now()
    with session.opened(config, tmp_path / "w", None):
        assert now() != before
    assert now() == before
    with pytest.raises(ZeroDivisionError):
        end_by(ZeroDivisionError(), config, tmp_path / "w")
    assert now() == before


def test_signals_of_the_program_are_left_installed_and_know_how_to_leave_the_workdir(tmp_path, config):
    class Own(Signals):
        def before_first_step(self, callback, grace_secs):
            self.callback, self.grace_secs = callback, grace_secs

    signals, before = Own(), signal.getsignal(signal.SIGINT)
    with session.opened(config, tmp_path / "w", signals) as here:
        assert signal.getsignal(signal.SIGINT) is before
        assert here.signals is signals
        assert signals.grace_secs == config.preemption.grace_secs
        here.begin(config, {}, 0)
        signals.callback("SIGTERM before the first step")
        status = read(tmp_path / "w" / "status.json")
        assert (status["state"], status["reason"]) == ("preempted", "SIGTERM before the first step")
        with session.opened(config, tmp_path / "w", None):  # its lock is free
            pass
