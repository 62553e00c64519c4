import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.checkpoint import best
from jaxtrain.errors import CheckpointError
from jaxtrain.writers.jsonl import MetricsFile

LINES = [
    ("train", 3, {"loss": 0.0}),
    ("validation", 3, {"loss": 2.0, "accuracy": 0.5}),
    ("test", 3, {"loss": 0.0}),
    ("validation", 6, {"loss": 1.0, "accuracy": math.nan}),
    ("validation", 9, {"loss": math.nan, "accuracy": 0.75}),
    ("validation", 12, {"loss": -math.inf, "accuracy": 0.75}),
    ("validation", 15, {"loss": 1.5}),
]


def write(path, lines):
    file = MetricsFile(path)
    for split, step, scalars in lines:
        file.write(step, split, scalars, 0.0)
    file.close()
    return path


@pytest.fixture
def metrics(tmp_path):
    return write(tmp_path / "metrics.jsonl", LINES)


def test_scores_are_the_finite_numbers_of_one_evaluation(metrics):
    assert best.scores(metrics, "validation/loss") == {3: 2.0, 6: 1.0, 15: 1.5}
    assert best.scores(metrics, "validation/accuracy") == {3: 0.5, 9: 0.75, 12: 0.75}
    assert best.scores(metrics, "valid/loss") == {}
    assert best.scores(metrics, "validation/split") == {}


def test_only_saved_steps_count_and_of_equal_ones_the_earlier(metrics):
    assert best.best_steps(metrics, "validation/loss", "min", 2, [3, 6, 9, 12, 15, 18]) == [6, 15]
    assert best.best_steps(metrics, "validation/loss", "min", 2, [3, 9, 18]) == [3]
    assert best.best_steps(metrics, "validation/loss", "max", 1, [3, 6, 9, 12]) == [3]
    assert best.best_steps(metrics, "validation/accuracy", "max", 1, [12, 9, 3]) == [9]
    assert best.best_step(metrics, "validation/accuracy", "max", [12, 9, 3]) == 9


def test_no_best_step_says_why(metrics, tmp_path):
    with pytest.raises(CheckpointError, match=r"Set --config.checkpoint.best_metric="):
        best.best_step(metrics, "", "min", [3])
    with pytest.raises(CheckpointError, match=r"no finite validation/loss of a step that is saved \(9, 18\)"):
        best.best_step(metrics, "validation/loss", "min", [18, 9])
    with pytest.raises(CheckpointError, match=r"no finite"):
        best.best_step(tmp_path / "none.jsonl", "validation/loss", "min", [18, 9])


@given(st.lists(st.one_of(st.floats(width=16), st.none()), max_size=12), st.integers(1, 4), st.booleans())
def test_deleting_the_others_step_by_step_leaves_the_best_of_all(tmp_path_factory, values, count, smallest):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    file, saved, mode = MetricsFile(path), [], "min" if smallest else "max"
    for step, value in enumerate(values):
        saved = best.best_steps(path, "validation/loss", mode, count, saved)
        saved.append(step)
        if value is not None:
            file.write(step, "validation", {"loss": value}, 0.0)
            file.flush()
    file.close()
    finite = {step: value for step, value in enumerate(values) if value is not None and math.isfinite(value)}
    expected = sorted(finite, key=finite.get, reverse=not smallest)[:count]  # sorted() is stable, also in reverse
    assert best.best_steps(path, "validation/loss", mode, count, saved) == expected


def test_a_run_of_a_million_steps_is_read_in_the_time_of_its_evaluations(tmp_path):
    train = json.dumps({"step": 1, "time": 0.0, "split": "train", "loss": 0.5} | {f"n{i}": 0.1 for i in range(12)})
    line = json.dumps({"step": 7, "time": 0.0, "split": "validation", "loss": 0.5})
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{train}\n" * 100_000 + line + "\n")
    decoded = []
    original, best_json = json.loads, pytest.MonkeyPatch()
    best_json.setattr(json, "loads", lambda text: decoded.append(text) or original(text))
    assert best.scores(path, "validation/loss") == {7: 0.5}
    best_json.undo()
    assert len(decoded) <= 2
