import inspect
import time

import pytest

from jaxtrain.duration import Duration, Every
from jaxtrain.pace import Pace


class Clock:
    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


def every(text):
    return Every(Duration.parse(text), batch_size=4)


def test_steps_end_a_run_at_its_last_one():
    pace = Pace(3, None)
    over = []
    while not pace.is_over:
        pace.advance()
        over.append(pace.is_over)
    assert over == [False, False, True]
    assert Pace(3, None, step=3).is_over


def test_time_ends_a_run_after_the_step_that_uses_it_up():
    clock = Clock()
    pace = Pace(None, 2.0, clock=clock)
    for now, is_over in ((1000.9, False), (1001.99, False), (1002.0, True)):
        clock.now = now
        pace.advance()
        assert pace.is_over == is_over
    assert (pace.step, pace.secs) == (3, pytest.approx(2.0))


def test_seconds_of_earlier_launches_count():
    clock = Clock()
    pace = Pace(None, 100.0, step=7, secs=98.0, clock=clock)
    assert not pace.is_over
    clock.now += 2
    assert pace.advance() == 8
    assert pace.is_over


def test_the_clock_on_the_wall_does_not_matter():
    assert inspect.signature(Pace).parameters["clock"].default is time.monotonic
    pace = Pace(None, 60.0)
    pace.advance()
    assert 0 <= pace.secs < 60


def test_what_recurs_by_steps_is_due_at_multiples_and_after_the_last_step():
    pace = Pace(8, None)
    due = {}
    while not pace.is_over:
        step = pace.advance()
        due[step] = [pace.due(every("3 steps")), pace.due(every("10 examples")), pace.due(every(""))]
    assert [step for step, (by_steps, _, _) in due.items() if by_steps] == [3, 6, 8]
    assert [step for step, (_, by_examples, _) in due.items() if by_examples] == [3, 5, 8]
    assert [step for step, (_, _, never) in due.items() if never] == [8]


def test_what_recurs_by_time_is_due_once_a_period_across_launches():
    clock = Clock()
    pace = Pace(None, None, clock=clock)
    found = []
    for _ in range(9):
        clock.now += 0.25
        pace.advance()
        found.append(pace.due(every("1 second")))
    assert found == [False, False, False, True, False, False, False, True, False]
    later = Pace(None, None, step=pace.step, secs=pace.secs, clock=clock)
    assert not later.due(every("1 second"))  # 2.25 s: nothing new has happened yet
    clock.now += 0.75
    later.advance()
    assert later.due(every("1 second"))
