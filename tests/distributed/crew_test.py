import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.distributed.crew import Crew
from jaxtrain.errors import ConfigError, DataError, JaxtrainError, StoppedError
from tests.distributed.groups import crews, together


def test_every_process_gets_the_values_of_all():
    with crews(3) as opened:
        results = together([lambda crew=crew: crew.gather("x", crew.index * 10) for crew in opened])
        assert results == [[0, 10, 20]] * 3
        again = together([lambda crew=crew: crew.gather("x", crew.index) for crew in opened])
        assert again == [[0, 1, 2]] * 3


def test_all_get_the_result_of_the_first_and_its_error():
    with crews(2) as opened:
        assert together([lambda crew=crew: crew.from_first("x", lambda: {"a": crew.index}) for crew in opened]) == [
            {"a": 0},
            {"a": 0},
        ]

        def fail():
            raise DataError("no such file")

        errors = together([lambda crew=crew: crew.from_first("y", fail) for crew in opened])
        assert [(str(error), error.exit_code) for error in errors] == [("no such file", 2)] * 2


def run_turns(crew: Crew, asks_at: int, kind: str, delays: random.Random, last: int) -> int:
    """Begin turns until the end that all agree on; ask for one after turn `asks_at`. Gives the turns begun."""
    begun = 0
    while begun < last:
        reason = kind if begun >= asks_at else None
        if crew.should_stop(reason if kind == "interrupted" else None, reason if kind == "ending" else None):
            break
        time.sleep(delays.random() * 2e-3)
        if not crew.begin_turn(is_step=True):
            break
        begun += 1
    return begun


@settings(max_examples=15, deadline=None)
@given(
    asks=st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=2, max_size=4),
    kinds=st.lists(st.sampled_from(["interrupted", "ending"]), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def test_whoever_asks_and_whenever_all_stop_after_the_same_turn(asks, kinds, seed):
    last = 40
    with crews(len(asks)) as opened:
        functions = [
            lambda crew=crew, ask=ask, kind=kind: run_turns(
                crew, last if ask is None else ask, kind, random.Random(seed + crew.index), last
            )
            for crew, ask, kind in zip(opened, asks, kinds, strict=False)
        ]
        begun = together(functions)
        assert len(set(begun)) == 1, begun
        if all(ask is None for ask in asks):
            assert begun[0] == last
        elif None not in asks:
            assert begun[0] <= max(asks) + 1


def test_where_all_ask_after_the_same_turn_none_goes_on():
    with crews(3) as opened:
        delays = random.Random(0)
        assert together([lambda crew=crew: run_turns(crew, 7, "ending", delays, 40) for crew in opened]) == [7, 7, 7]


def test_evaluations_go_on_after_a_step_that_ended_the_run_but_not_after_an_interruption():
    with crews(2) as opened:

        def end(crew, interrupted):
            while not crew.should_stop("SIGTERM" if interrupted else None, None if interrupted else "early"):
                time.sleep(1e-3)
            return crew.begin_turn(is_step=True), crew.begin_turn(is_step=False)

        assert together([lambda crew=crew: end(crew, False) for crew in opened]) == [(False, True)] * 2
        assert together([lambda crew=crew: end(crew, True) for crew in opened]) == [(False, False)] * 2
        together([crew.reset for crew in opened])
        assert [crew.begin_turn(is_step=True) for crew in opened] == [True, True]


def test_the_clock_is_that_of_the_first_process():
    with crews(2) as opened:
        readings = together([lambda crew=crew: [crew.clock() for _ in range(5)] for crew in opened])
        assert readings[0] == readings[1] == sorted(readings[0])


@pytest.mark.parametrize("how", ["fail", "close"])
def test_a_process_that_fails_or_goes_away_is_told_to_those_who_wait(how):
    with crews(2) as opened:
        end = (lambda: opened[0].fail("out of coffee")) if how == "fail" else opened[0].close
        error, _ = together([lambda: opened[1].gather("x", 1), end])
        assert isinstance(error, StoppedError)
        assert ("out of coffee" if how == "fail" else "process 0 (pid 100 on h) is lost") in str(error)
        assert error.exit_code == 75


def test_a_loss_ends_the_process_that_does_not_notice_and_explains_what_failed_for_it():
    with crews(2) as opened:
        heard = threading.Event()
        opened[1].on_loss = lambda reason: heard.set()
        opened[0].fail("out of coffee")
        explained = opened[1].explain(ValueError("connection closed by peer"))
        assert isinstance(explained, StoppedError)
        own = ConfigError([])
        assert opened[1].explain(own) is own
        assert heard.wait(10)


def test_an_own_error_stays_what_it_is():
    with crews(2) as opened:
        error = ValueError("a bug")
        assert opened[0].explain(error) is error
        assert isinstance(JaxtrainError("x"), Exception)


def test_silence_is_a_loss():
    with crews(2, silence_secs=0.5) as opened:
        opened[1]._send = lambda message: None
        with pytest.raises(StoppedError, match=r"process 1 .*nothing was heard of it for 0\.5 s"):
            opened[0].gather("x", 1)
