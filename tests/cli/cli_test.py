import importlib
import sys

import pytest

from jaxtrain import cli, errors, redact

NAME = "tests.cli.cli_test"
TRAINED = 42


def main(argv):
    """A command: it ends as its argument says."""
    if argv[0].startswith("--config="):
        return TRAINED
    ends = {
        "ok": None,
        "refused": errors.WorkdirError("no room here"),
        "nonfinite": errors.NonFiniteError("not a number"),
        "storage": errors.StorageError("disk full"),
        "stopped": errors.StoppedError("a peer is gone"),
        "example": errors.ExampleError("example 7"),
        "unexpected": ZeroDivisionError("oh"),
        "interrupted": KeyboardInterrupt(),
        "secret": errors.WorkdirError("cannot reach sentinel-of-the-secret"),
    }
    if ends[argv[0]] is not None:
        raise ends[argv[0]]
    return 0


@pytest.fixture(autouse=True)
def command(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "end", (NAME, "ends"))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("end", "code", "has_traceback"),
    [
        ("ok", 0, False),
        ("refused", 2, False),
        ("nonfinite", 3, False),
        ("storage", 4, False),
        ("stopped", 75, False),
        ("example", 1, True),
        ("unexpected", 1, True),
        ("interrupted", 130, False),
    ],
)
def test_each_end_has_its_code_and_only_the_unexpected_a_traceback(capsys, end, code, has_traceback):
    assert cli.main(["end", end]) == code
    assert ("Traceback" in capsys.readouterr().err) == has_traceback


def test_a_named_end_is_its_message(capsys):
    cli.main(["end", "refused"])
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no room here\n")


def test_no_secret_is_in_a_message(capsys, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "sentinel-of-the-secret")
    redact.resolve("env:SERVICE_TOKEN", "data.token")
    cli.main(["end", "secret"])
    assert "sentinel" not in capsys.readouterr().err


def test_flags_without_a_command_train(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "train", (NAME, ""))
    assert cli.main(["--config=x.py"]) == TRAINED


@pytest.mark.parametrize(("argv", "code"), [(["--help"], 0), (["-h"], 0), (["help"], 0), ([], 2)])
def test_help_names_every_command_that_there_is(capsys, argv, code):
    assert cli.main(argv) == code
    out = capsys.readouterr().out
    for name, (module, _) in cli.COMMANDS.items():
        assert f"  {name} " in out
        assert callable(importlib.import_module(module).main)


def test_an_unknown_command_is_told_with_those_there_are(capsys):
    assert cli.main(["trian", "--config=x"]) == 2
    assert "'trian'" in capsys.readouterr().err


def test_modules_of_the_current_directory_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert cli.main(["end", "ok"]) == 0
    assert sys.path[0] == str(tmp_path)
