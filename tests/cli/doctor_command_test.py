import json

import pytest

from jaxtrain import cli as command_line
from jaxtrain import doctor
from jaxtrain.cli import doctor_command
from jaxtrain.doctor.check import Check
from jaxtrain.doctor.finding import fail, not_applicable, ok, warn
from tests.faults import trial


@pytest.fixture
def checks(monkeypatch):
    """Replace the checks by some with these findings."""

    def replace(**findings):
        made = tuple(Check(name, 5, lambda machine, found=found: found) for name, found in findings.items())
        monkeypatch.setattr(doctor, "CHECKS", made)

    return replace


def test_a_healthy_machine_and_config(cli, tmp_path):
    trial.set_up(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    ended = cli.run("doctor", "--config=tiny.py", "--workdir=w", "--json=out.json")
    assert ended.returncode == 0, ended.output
    assert ended.stderr == ""
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["healthy"]
    assert [each["check"] for each in report["findings"]] == [check.name for check in doctor.CHECKS]
    status = {each["check"]: each["status"] for each in report["findings"]}
    assert "fail" not in status.values()
    for name in ("jax", "devices", "config", "secrets", "experiment", "data", "workdir", "disk space", "clock"):
        assert status[name] == "ok", ended.stdout
    assert {status[name] for name in ("driver", "cuda", "links", "bandwidth", "coordinator")} <= {"n/a", "ok", "warn"}
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "out.json"])


def test_the_table_and_the_file_say_the_same(checks, tmp_path, capsys):
    checks(a=ok("fine"), b=warn("slow", "be quick"), c=not_applicable("no such thing"), d=fail("one\n  two", "do it"))
    assert command_line.main(["doctor", f"--json={tmp_path / 'o.json'}"]) == 5
    assert capsys.readouterr().out.splitlines() == [
        "a              ok    fine",
        "b              warn  slow",
        "                     -> be quick",
        "c              n/a   no such thing",
        "d              fail  one",
        "                     two",
        "                     -> do it",
        "",
        "failed: d",
    ]
    report = json.loads((tmp_path / "o.json").read_text())
    assert not report["healthy"]
    assert report["findings"][1] == {"check": "b", "status": "warn", "found": "slow", "advice": "be quick"}


def test_a_warning_is_no_failure(checks, capsys):
    checks(a=warn("slow", "be quick"))
    assert command_line.main(["doctor"]) == 0
    assert "nothing fails" in capsys.readouterr().out


def test_a_check_that_hangs_does_not_hold_the_others(monkeypatch, capsys):
    import threading

    never = threading.Event()
    hangs = Check("a", 60, lambda machine: never.wait() and ok(""))
    monkeypatch.setattr(doctor, "CHECKS", (hangs, Check("b", 60, lambda machine: ok("fine"))))
    assert command_line.main(["doctor", "--max_secs=0.25"]) == 5
    out = capsys.readouterr().out
    assert "a              fail  no answer within 3.25 s" in out
    assert "b              ok    fine" in out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--jsno=x"], "--json"),
        (["--max_secs=soon"], "not a number of seconds"),
        (["--max_secs=0"], "not a number of seconds"),
        (["--config.seed=1"], "change no config"),
        (["--json"], "needs a value"),
        (["somewhere"], "is a value without a flag"),
    ],
)
def test_flags_that_are_none_are_refused(argv, told, capsys):
    assert command_line.main(["doctor", *argv]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


def test_a_file_that_cannot_be_written_is_told(checks, tmp_path, capsys):
    checks(a=ok("fine"))
    assert command_line.main(["doctor", f"--json={tmp_path / 'gone/o.json'}"]) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_help_says_what_is_written(capsys):
    assert doctor_command.main(["--help"]) == 0
    assert '"findings"' in capsys.readouterr().out
