import logging
import sys
import warnings

import pytest

from jaxtrain import redact
from jaxtrain.errors import WorkdirError
from jaxtrain.workdir import Workdir, setup_logging
from tests import mounts


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / "w")


@pytest.fixture
def log(workdir):
    """Starts logging; gives the log file's text."""
    undo = setup_logging(workdir)
    yield lambda: (workdir.logs_dir / "process-0.log").read_text()
    undo()


def test_lines_go_to_the_terminal_and_to_the_file(log, capsys):
    logging.getLogger("somebody.else").info("hello %d", 1)
    logging.getLogger("jaxtrain.x").warning("careful")
    out = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 1)[1] for line in out] == ["hello 1", "WARNING: careful"]
    lines = log().splitlines()
    assert lines[0].endswith(" INFO somebody.else: hello 1")
    assert lines[1].endswith(" WARNING jaxtrain.x: careful")


def test_lines_of_one_message_stand_below_each_other_on_the_terminal(log, capsys):
    logging.getLogger("jaxtrain.x").info("name   size\nkernel %d", 12)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" name   size")
    assert second == " " * first.index("name") + "kernel 12"
    assert log().endswith(": name   size\nkernel 12\n")


def test_what_is_for_the_file_is_not_on_the_terminal(log, capsys):
    logging.getLogger("jaxtrain.x").error("long", extra={"file_only": True})
    logging.getLogger("jaxtrain.x").error("short")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == ["ERROR: short"]
    assert "long" in log()


def test_a_handler_that_a_library_left_prints_no_line_twice(workdir, capsys):
    left = logging.StreamHandler()  # as logging.basicConfig does
    logging.getLogger().addHandler(left)
    try:
        undo = setup_logging(workdir)
        logging.getLogger("jaxtrain.x").warning("once")
        undo()
        assert left in logging.getLogger().handlers
    finally:
        logging.getLogger().removeHandler(left)
    captured = capsys.readouterr()
    assert captured.out.count("once") == 1
    assert captured.err == ""


def test_libraries_are_heard_only_when_they_warn(log, capsys):
    logging.getLogger("absl").info("chatter")
    logging.getLogger("jax._src.dispatch").info("chatter")
    logging.getLogger("orbax.checkpoint").warning("trouble")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old way", stacklevel=1)
    assert "chatter" not in log()
    assert "trouble" in log()
    assert "old way" in log()
    assert "chatter" not in capsys.readouterr().out


def test_other_processes_print_warnings_only(workdir, capsys):
    undo = setup_logging(workdir, process_index=3)
    logging.getLogger("jaxtrain").info("quiet")
    logging.getLogger("jaxtrain").warning("loud")
    undo()
    assert "quiet" in (workdir.logs_dir / "process-3.log").read_text()
    out = capsys.readouterr().out
    assert "quiet" not in out
    assert "loud" in out


def test_secrets_are_hidden_in_arguments_tracebacks_and_stacks(log, capsys, monkeypatch):
    monkeypatch.setattr(redact, "_redactor", redact.Redactor())
    secret = "s3ntinel-value"
    redact.add(secret)
    logging.getLogger("a").info("key %s", secret)
    try:
        raise ValueError(f"bad {secret}")
    except ValueError:
        logging.getLogger("a").exception("failed", stack_info=True)
    for text in (log(), capsys.readouterr().out):
        assert secret not in text
        assert "ValueError: bad <redacted>" in text


def test_undo_leaves_logging_as_it_was(workdir):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    setup_logging(workdir)()
    assert (root.level, list(root.handlers)) == before


def test_a_terminal_that_went_away_does_not_matter(log, monkeypatch, capfd):
    class Broken:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken())
        logging.getLogger("a").info("still here")
    assert "still here" in log()
    assert capfd.readouterr().err == ""


def test_a_full_disk_is_one_warning_on_the_terminal(tmp_path, capsys):
    with mounts.small_disk(tmp_path / "disk") as disk:
        workdir = Workdir(disk / "w")
        undo = setup_logging(workdir)
        ballast = mounts.fill(disk)
        for number in range(100):
            logging.getLogger("a").info("line %d %s", number, "." * 100)
        out = capsys.readouterr().out
        assert out.count("WARNING") == 1
        assert "process-0.log cannot be written (No space left on device)" in out
        ballast.unlink()
        undo()
        text = (workdir.logs_dir / "process-0.log").read_text()
        assert [f"line {number} " in text for number in range(100)] == [True] * 100


def test_a_log_file_that_cannot_be_opened_is_a_workdir_error(workdir):
    (workdir.logs_dir / "process-0.log").mkdir()
    with pytest.raises(WorkdirError, match=r"process-0\.log cannot be opened"):
        setup_logging(workdir)
