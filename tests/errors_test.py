import inspect

import pytest

from jaxtrain import errors
from jaxtrain.errors import ConfigError, Problem

CLASSES = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, Exception)]


def test_each_end_has_the_code_that_is_documented():
    assert {c.__name__: c.exit_code for c in CLASSES} == {
        "JaxtrainError": 1,
        "RefusedError": 2,
        "ConfigError": 2,
        "DataError": 2,
        "WorkdirError": 2,
        "CheckpointError": 2,
        "ExampleError": 1,
        "NonFiniteError": 3,
        "StorageError": 4,
        "OutOfMemoryError": 1,
        "StoppedError": 75,
    }
    assert (errors.EXIT_OK, errors.EXIT_NO) == (0, 5)


def test_what_a_user_wrote_wrong_is_a_value_error_and_what_went_wrong_is_not():
    assert {c.__name__ for c in CLASSES if issubclass(c, ValueError)} == {
        *("RefusedError", "ConfigError", "DataError", "WorkdirError", "CheckpointError")
    }


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("seed", -1, "must be 0 or more"), "--config.seed=-1: must be 0 or more."),
        (Problem("a.b", 3, "odd", "Use 4."), "--config.a.b=3: odd. Use 4."),
        (Problem("", "x.py", "no such file"), "--config=x.py: no such file."),
        (Problem("--workdr", "w", "unknown", "Write --workdir."), "--workdr=w: unknown. Write --workdir."),
    ],
)
def test_a_problem_spells_its_key_as_the_flag_does(problem, text):
    assert str(problem) == text


def test_all_problems_are_told_in_one_go():
    problems = [Problem("seed", -1, "too low"), Problem("batch_size", 0, "too low")]
    error = ConfigError(problems)
    assert error.problems == tuple(problems)
    assert str(error).splitlines() == ["The config has 2 problems:", *(f"  {problem}" for problem in problems)]
    assert str(ConfigError(problems[:1])).startswith("The config has 1 problem:\n")
