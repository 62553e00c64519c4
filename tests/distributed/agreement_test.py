import pytest

from jaxtrain.distributed.agreement import require_same
from jaxtrain.distributed.alone import Alone
from jaxtrain.errors import RefusedError
from tests.distributed.groups import crews, together


def test_what_is_the_same_passes_and_one_process_always_does():
    require_same(Alone(), "command", {"a": 1})
    with crews(2) as opened:
        value = {"a": {"b": 1}, "host": None}
        assert together([lambda crew=crew: require_same(crew, "command", value) for crew in opened]) == [None, None]


def test_each_difference_is_named_to_all_of_them():
    with crews(2) as opened:
        values = [{"a": {"b": 1, "c": 2}, "mine": 0}, {"a": {"b": 1, "c": 3, "d": 4}, "mine": 1}]
        errors = together(
            [lambda crew=crew: require_same(crew, "command", values[crew.index], ["a"]) for crew in opened]
        )
    for error in errors:
        assert isinstance(error, RefusedError)
        assert "a.c: 2 in process 0, 3 in process 1" in str(error)
        assert "a.d: (absent) in process 0, 4 in process 1" in str(error)
        assert "mine" not in str(error)


def test_of_many_differences_some_are_told():
    with crews(2) as opened:
        values = [{str(key): process for key in range(50)} for process in (0, 1)]
        errors = together([lambda crew=crew: require_same(crew, "command", values[crew.index]) for crew in opened])
    assert str(errors[0]).count("in process 0") == 8
    assert "and 42 more" in str(errors[0])


def test_the_error_is_that_of_a_refused_command():
    with crews(2) as opened:
        (error, _) = together([lambda crew=crew: require_same(crew, "c", {"x": crew.index}) for crew in opened])
    with pytest.raises(RefusedError):
        raise error
    assert error.exit_code == 2
