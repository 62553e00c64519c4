import subprocess
import sys
import time

from jaxtrain.timeline import Timeline, process_age_secs


def test_each_phase_lasts_from_the_mark_before():
    times = iter([10.0, 11.5, 11.75, 15.75, 16.0])
    timeline = Timeline(clock=lambda: next(times), age_secs=2.0)
    for phase in ("imports", "data", "compile", "first step"):
        timeline.mark(phase)
    assert timeline.secs == {"imports": 3.5, "data": 0.25, "compile": 4.0, "first step": 0.25}
    assert str(timeline) == "first step after 8.0 s: imports 3.5 s, data 0.2 s, compile 4.0 s, first step 0.2 s"


def test_a_phase_named_again_adds_up():
    times = iter([0.0, 1.0, 3.0, 6.0])
    timeline = Timeline(clock=lambda: next(times), age_secs=0.0)
    for phase in ("compile", "data", "compile"):
        timeline.mark(phase)
    assert timeline.secs == {"compile": 4.0, "data": 2.0}


def test_the_first_phase_begins_with_the_process():
    program = "import time; time.sleep(0.3); from jaxtrain.timeline import process_age_secs; print(process_age_secs())"
    start = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert 0.29 <= age <= time.monotonic() - start + 0.02
    assert process_age_secs() > 0
