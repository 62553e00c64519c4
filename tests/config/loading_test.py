import sys

import pytest

from jaxtrain.config import load, parse
from jaxtrain.errors import ConfigError

GOOD = """
from jaxtrain.config import default_config

def get_config(variant=""):
    config = default_config()
    config.duration = "20 steps" if variant == "long" else "10 steps"
    config.task.type = config.data.type = "a.b:C"
    return config
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text, name="my_run.py"):
        (tmp_path / name).write_text(text)
        return name

    return write


def refused(argument):
    with pytest.raises(ConfigError) as error:
        load(argument)
    (problem,) = error.value.problems
    assert str(problem).startswith(f"--config={argument}: ")
    return str(problem)


def test_a_file_is_run_and_overrides_are_set_over_it(write):
    config = parse(load(write(GOOD), ["seed=3"])).checked()
    assert (config.name, config.duration, config.seed) == ("my_run", "10 steps", 3)


def test_a_variant_is_passed_on_and_named(write):
    config = parse(load(write(GOOD) + ":long")).checked()
    assert (config.name, config.duration) == ("my_run-long", "20 steps")


def test_a_name_in_the_file_stays(write):
    text = GOOD.replace("return config", "config.name = 'mine'\n    return config")
    assert parse(load(write(text))).checked().name == "mine"


def test_a_file_whose_name_is_no_name_of_a_run_gets_one(write):
    assert parse(load(write(GOOD, "my run (2).py"))).checked().name == "my_run__2_"


def test_the_current_directory_can_be_imported_from(write, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    write("DURATION = '7 steps'", "shared_by_configs.py")
    text = GOOD.replace("def get", "from shared_by_configs import DURATION\n\ndef get").replace(
        '"10 steps"', "DURATION"
    )
    assert parse(load(write(text))).checked().duration == "7 steps"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD.replace("config.duration", "config.duraton"), "(line 6 of {path})"),
        (GOOD.replace("config.duration", "config.duraton"), 'Did you mean "duration"'),
        (GOOD.replace("return config", "return 1 / 0"), "ZeroDivisionError: division by zero (line 8 of {path})"),
        ("def get_config(:\n", "SyntaxError"),
        ("import no_such_module_anywhere\n", "No module named 'no_such_module_anywhere' (line 1 of {path})"),
        ("raise SystemExit('bye')\n", "SystemExit: bye (line 1 of {path})"),
        ("x = 1\n", "defines no function get_config"),
        ("def get_config(): return 5\n", "returned 5, not a ConfigDict"),
        ("def get_config(variant): return {}\n", "TypeError"),
        ("def f(): f()\nf()\n", "RecursionError"),
    ],
)
def test_what_fails_in_the_file_is_told_by_file_and_line(write, tmp_path, text, told):
    message = refused(write(text))
    assert told.format(path=tmp_path / "my_run.py") in message or told.format(path="my_run.py") in message
    assert "\n" not in message
    assert len(message) < 700


def test_a_locked_config_is_not_printed_into_the_message(write):
    assert "compile_cache" not in refused(write(GOOD.replace("config.duration", "config.duraton")))


def test_a_variant_that_nobody_takes_is_refused(write):
    assert "takes no variant" in refused(write("def get_config(): return {}\n") + ":long")


@pytest.mark.parametrize("argument", ["missing.py", "", ".", ":x", "my_run.txt"])
def test_what_is_no_python_file_is_refused_with_those_there_are(write, argument):
    write(GOOD)
    write("", "my_run.txt")
    assert refused(argument)
    assert "my_run.py" in refused("missing.py")


def test_bytes_that_are_no_text_are_refused(write, tmp_path):
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    assert "Error" in refused("bytes.py")


def test_a_secret_in_an_exception_is_hidden(write):
    text = "from jaxtrain import redact\nredact.add('sentinel-3371')\nraise ValueError('key sentinel-3371')\n"
    assert "sentinel-3371" not in refused(write(text))


def test_nothing_is_written_beside_the_file(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    load(write(GOOD))
    assert [path.name for path in tmp_path.iterdir()] == ["my_run.py"]
