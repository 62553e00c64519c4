import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxtrain.evaluate import Evaluator, compute, merge_on_host
from jaxtrain.metrics import Mean
from tests.classifier import make_config, on_one_device, rows

NUM_ROWS = 100


class Guarded:
    """A source that may be looked at and not read."""

    def __init__(self, source):
        self.source, self.is_open = source, False

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        assert self.is_open, "read"
        return self.source[index]

    def zeros(self):
        return self.source.zeros()


SOURCE = Guarded(rows(NUM_ROWS, seed=3))


@pytest.fixture(scope="module")
def experiment():
    config = make_config()
    config.data.type = SOURCE
    config.evals.everything = {"batch_size": NUM_ROWS}
    config.evals.one = {"batch_size": 1}
    config.evals.seven = {"batch_size": 7}
    config.evals.sixty_four = {"batch_size": 64}
    config.evals.first = {"batch_size": 7, "num_batches": 2}
    return on_one_device(config)


@pytest.fixture(scope="module")
def state(experiment):
    return experiment.init_state()


@pytest.fixture(scope="module")
def compiled(experiment):
    """The evaluator, and the batches that it compiled a step for."""
    shapes = []

    def compile_eval_step(batch):
        shapes.append(batch["image"].shape)
        return experiment.compile_eval_step(batch)

    return Evaluator(compile_eval_step), shapes


def by_name(experiment, name):
    return next(evaluation for evaluation in experiment.evaluations if evaluation.name == name)


def run(compiled, experiment, state, name, should_stop=lambda: False):
    SOURCE.is_open = True
    try:
        return compiled[0].run(by_name(experiment, name), state.params, state.model_state, should_stop)
    finally:
        SOURCE.is_open = False


def expected(state, num_rows):
    """The mean loss and accuracy in float64, computed by hand."""
    arrays = SOURCE.source.arrays
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), state.params)
    x = arrays["image"][:num_rows] @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    logits = x @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
    labels = arrays["label"][:num_rows]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(num_rows), labels]
    return {"loss": losses.mean(), "accuracy": (logits.argmax(1) == labels).mean()}


@pytest.mark.parametrize("name", ["one", "seven", "sixty_four", "everything"])
def test_the_metrics_are_those_of_every_example_once_at_any_batch_size(compiled, experiment, state, name):
    assert run(compiled, experiment, state, name) == pytest.approx(expected(state, NUM_ROWS), rel=1e-6)


def test_fewer_batches_are_the_first_ones(compiled, experiment, state):
    assert run(compiled, experiment, state, "first") == pytest.approx(expected(state, 14), rel=1e-6)
    assert expected(state, 14) != pytest.approx(expected(state, NUM_ROWS), rel=1e-3)


def test_the_check_reads_no_example_and_compiles_what_is_needed_later(compiled, experiment, state):
    for evaluation in experiment.evaluations:
        compiled[0].check(evaluation, state.params, state.model_state)
        assert set(compiled[0].metrics[evaluation.name]) == {"loss", "accuracy"}
    run(compiled, experiment, state, "seven")
    run(compiled, experiment, state, "first")
    assert sorted(compiled[1]) == [(1, 4), (7, 4), (64, 4), (NUM_ROWS, 4)]
    with pytest.raises(AssertionError, match="read"):
        SOURCE[0]


def test_the_check_finds_an_evaluation_that_cannot_work(experiment, state):
    broken = dataclasses.replace(
        experiment, task=dataclasses.replace(experiment.task, inputs="picture"), evaluations=()
    )
    with pytest.raises(KeyError, match="picture"):
        Evaluator(broken.compile_eval_step).check(by_name(experiment, "one"), state.params, state.model_state)


def test_asked_to_stop_there_is_no_result(compiled, experiment, state):
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) > 3

    assert run(compiled, experiment, state, "one", should_stop) is None


def test_totals_of_a_long_evaluation_are_float64_on_the_host():
    total = merge_on_host(None, {"loss": Mean(np.float32(2**24), np.float32(2**24))})
    for _ in range(1000):
        total = merge_on_host(total, {"loss": Mean(np.float32(1.0), np.float32(1.0))})
    assert (total["loss"].total, total["loss"].weight) == (2**24 + 1000, 2**24 + 1000)
    assert np.float32(2**24) + np.float32(1) == np.float32(2**24)  # what float32 would make of it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Count:
    """Right answers and all answers, int32 on the device."""

    right: object
    seen: object

    def merge(self, other):
        return Count(self.right + other.right, self.seen + other.seen)

    def compute(self):
        return {"right": self.right, "share": self.right / self.seen}


def test_whole_numbers_are_summed_as_int64():
    big = Count(jax.numpy.int32(2**30), jax.numpy.int32(2**30))
    total = None
    for _ in range(4):
        total = merge_on_host(total, {"count": big})
    assert total["count"].right == 2**32


def test_a_metric_of_several_numbers_gives_one_entry_each():
    numbers = compute({"count": Count(np.int64(3), np.int64(4)), "loss": Mean(np.float64(6), np.float64(4))})
    assert numbers == {"count_right": 3, "count_share": 0.75, "loss": 1.5}
    assert [type(number) for number in numbers.values()] == [int, float, float]
    assert compute(None) == {}
