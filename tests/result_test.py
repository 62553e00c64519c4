from pathlib import Path

import numpy as np
import pytest

from jaxtrain import Result

HISTORY = [
    {"step": 2, "time": 0.0, "split": "train", "loss": 0.5},
    {"step": 2, "time": 0.0, "split": "test", "loss": 0.7, "accuracy": 0.1},
    {"step": 4, "time": 0.0, "split": "train", "loss": "NaN"},
]
RESULT = Result("finished", 4, None, HISTORY, Path())


def test_a_curve_is_the_steps_and_values_of_one_split_as_arrays():
    steps, losses = RESULT.curve("train", "loss")
    assert (steps.dtype, losses.dtype) == (np.int64, np.float64)
    np.testing.assert_array_equal(steps, [2, 4])
    np.testing.assert_array_equal(losses, [0.5, np.nan])
    np.testing.assert_array_equal(RESULT.curve("test", "accuracy")[1], [0.1])


def test_a_curve_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(KeyError, match=r"train/accuracy is in no line; there are test/accuracy, test/loss, train/loss"):
        RESULT.curve("train", "accuracy")


def test_a_result_is_short_to_look_at():
    assert repr(RESULT) == f"Result(status='finished', step=4, workdir={Path()!r})"
