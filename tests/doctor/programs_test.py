import os
import time

import psutil
import pytest

from jaxtrain.doctor import programs

SLEEPER = "import subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"


def python(code):
    return ["python3", "-c", code]


def test_a_program_that_ends_gives_its_output():
    ended = programs.run(python("import sys; print('out'); sys.exit('err')"), 30)
    assert (ended.returncode, ended.stdout, ended.stderr, ended.trouble) == (1, "out\n", "err\n", "")
    assert programs.how_it_ended(ended) == "ended with exit code 1: err"


def test_a_program_past_its_deadline_is_killed_with_its_children_and_keeps_what_it_said():
    started = time.monotonic()
    ended = programs.run(python(SLEEPER), 1.5)
    assert time.monotonic() - started < 20
    assert (ended.returncode, ended.trouble) == (None, "no end within 1.5 s")
    assert not psutil.pid_exists(int(ended.stdout)) or psutil.Process(int(ended.stdout)).status() == "zombie"


def test_a_program_that_is_not_there_is_told():
    assert programs.run(["nowhere-to-be-found"], 5).trouble == (
        "nowhere-to-be-found cannot be started: No such file or directory"
    )


def test_a_death_by_signal_is_named():
    ended = programs.run(python("import os; os.kill(os.getpid(), 6)"), 30)
    assert programs.how_it_ended(ended) == "ended by SIGABRT"


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """A Python in which `jaxtrain.doctor.probe` is what the test writes."""

    def with_probe(code):
        package = tmp_path / "jaxtrain" / "doctor"
        package.mkdir(parents=True)
        for directory in (package, package.parent):
            (directory / "__init__.py").touch()
        (package / "probe.py").write_text(f"MARK = {programs.MARK!r}\n{code}")
        monkeypatch.chdir(tmp_path)  # which -m looks into first
        return {**os.environ, "PYTHONPATH": str(tmp_path)}

    return with_probe


def test_a_probe_tells_facts_between_the_lines_of_others(environ):
    code = """print("a library says hello")
print("half a line" + MARK + '{"of": "a", "x": 1}')
print(MARK + 'no json')
print(MARK + '{"of": "b", "y": 2}')
"""
    reply = programs.probe([], 30, environ(code))
    assert (reply.told, reply.trouble) == ({"a": {"x": 1}, "b": {"y": 2}}, "")
    assert "a" in reply
    assert reply["b"]["y"] == 2


@pytest.mark.parametrize(
    ("rest", "trouble"),
    [
        ("import time; time.sleep(60)", "no end within 2 s"),
        ("import os; os.abort()", "ended by SIGABRT"),
        ("import sys; sys.exit('worn out')", "ended with exit code 1: worn out"),
    ],
)
def test_what_was_told_before_an_end_is_known(environ, rest, trouble):
    reply = programs.probe([], 2.0, environ(f"""print(MARK + '{{"of": "a"}}', flush=True)\n{rest}\n"""))
    assert (reply.told, reply.trouble) == ({"a": {}}, trouble)


def test_a_probe_that_says_nothing_is_no_success(environ):
    assert programs.probe([], 30, environ("")).trouble == "ended with exit code 0"
