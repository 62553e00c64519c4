"""Metrics stay sums until they are written."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import metrics
from jaxtrain.evaluate import compute, merge_on_host
from jaxtrain.metrics import Mean, Perplexity


def test_a_mean_over_parts_of_any_size_is_the_mean_over_all():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=24).astype(np.float32), rng.random(24).astype(np.float32)
    parts = [Mean.of(v, w) for v, w in zip(np.split(values, [3, 4, 20]), np.split(weights, [3, 4, 20]), strict=True)]
    for order in (parts, parts[::-1]):
        merged = functools.reduce(Mean.merge, order)
        np.testing.assert_allclose(merged.compute(), np.average(values, weights=weights), rtol=1e-5)
    mean_of_means = np.mean([part.compute() for part in parts])
    assert abs(mean_of_means - np.average(values, weights=weights)) > 0.01


def test_what_is_masked_may_be_anything():
    mean = Mean.of(jnp.array([1.0, jnp.nan, jnp.inf, 3.0]), jnp.array([True, False, False, True]))
    assert (float(mean.total), float(mean.weight), float(mean.compute())) == (4.0, 2.0, 2.0)
    gradient = jax.grad(lambda x: Mean.of(x, jnp.array([True, False])).total)(jnp.array([2.0, jnp.nan]))
    np.testing.assert_array_equal(gradient, [1.0, 0.0])


@pytest.mark.parametrize("xp", [np, jnp])
def test_the_mean_of_nothing_is_zero_and_warns_of_nothing(xp):
    with np.errstate(all="raise"):
        assert float(Mean(xp.zeros(()), xp.zeros(())).compute()) == 0.0


def test_values_of_16_bits_are_summed_in_float32():
    ones = jnp.ones(1000, jnp.bfloat16)
    mean = Mean.of(ones, jnp.ones(1000, bool))
    assert (mean.total.dtype, mean.weight.dtype) == (jnp.float32, jnp.float32)
    assert float(mean.total) == 1000.0  # bfloat16 has no 1000 between 992 and 1008, and adding ones stalls at 256


def test_host_totals_keep_their_precision():
    mean = Mean(np.float64(2**24), np.float64(1)).merge(Mean(np.float64(1), np.float64(0)))
    assert mean.compute() == 2**24 + 1


def test_a_mean_passes_through_jit():
    merged = jax.jit(lambda a, b: a.merge(b))(Mean(jnp.ones(()), jnp.ones(())), Mean(jnp.ones(()), jnp.zeros(())))
    assert float(merged.compute()) == 2.0


NUM, CLASSES = 60, 4
RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(NUM, CLASSES)).astype(np.float32)
LABELS = RNG.integers(CLASSES - 1, size=NUM)  # of the last class there is none, though some are taken for it
MASK = RNG.random(NUM) < 0.8
MEASURES = {
    "top2": metrics.top_k(2),
    "f1": metrics.f1(),
    "confusion": metrics.confusion_matrix(),
    "perplexity": lambda logits, labels, mask: Perplexity.of(logits[:, 0], mask),
}


def measured(cuts=()):
    """Numbers of all measures, the examples cut into parts that are merged as an evaluation does."""
    total = None
    for logits, labels, mask in zip(*(np.split(array, cuts) for array in (LOGITS, LABELS, MASK)), strict=True):
        total = merge_on_host(total, {name: measure(logits, labels, mask) for name, measure in MEASURES.items()})
    return compute(total)


def counted():
    """(label, order of the classes from the likeliest) of each counted example."""
    return [(int(y), list(np.argsort(-x, kind="stable"))) for x, y, m in zip(LOGITS, LABELS, MASK, strict=True) if m]


def f1_by_hand(number):
    rows = counted()
    right = sum(label == order[0] == number for label, order in rows)
    wrong = sum((label == number) != (order[0] == number) for label, order in rows)
    return 2 * right / (2 * right + wrong) if right + wrong else None


def test_metrics_are_those_that_one_counts_by_hand():
    found, rows = measured(), counted()
    assert found["top2"] == pytest.approx(np.mean([label in order[:2] for label, order in rows]))
    by_class = [f1_by_hand(number) for number in range(CLASSES)]
    assert found["f1"] == pytest.approx(np.mean([score for score in by_class if score is not None]))
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(LOGITS[MASK, 0])))
    cells = {(a, b): found[f"confusion_{a}_{b}"] for a in range(CLASSES) for b in range(CLASSES)}
    assert cells == {(a, b): sum((label, order[0]) == (a, b) for label, order in rows) for a, b in cells}
    assert sum(cells.values()) == MASK.sum()


@pytest.mark.parametrize("cuts", [[1], [20, 40], range(NUM)])
def test_parts_of_any_size_give_the_metrics_of_the_whole(cuts):
    assert measured(cuts) == pytest.approx(measured(), rel=1e-6)


def test_padding_counts_in_no_metric_and_classes_that_never_occur_do_not_either():
    def padded(logits, labels, mask):
        pad = np.full((5, CLASSES + 1), np.nan, np.float32)
        pad[:, 1] = 9.0
        logits = np.concatenate([np.pad(logits, ((0, 0), (0, 1)), constant_values=-99.0), pad])
        return logits, np.concatenate([labels, [0, 1, 2, 3, 4]]), np.concatenate([mask, np.zeros(5, bool)])

    arrays = padded(LOGITS, LABELS, MASK)
    found = compute(merge_on_host(None, {name: measure(*arrays) for name, measure in MEASURES.items()}))
    plain = measured()
    assert {name: found[name] for name in plain} == pytest.approx(plain, rel=1e-6)


def test_the_f1_of_two_classes_is_that_of_the_second_alone():
    labels, logits = LABELS % 2, LOGITS[:, :2]
    found = metrics.f1("binary")(logits, labels, MASK).compute()
    predicted = logits.argmax(1)
    right, taken, there = (
        int(((a == 1) & (b == 1) & MASK).sum())
        for a, b in ((labels, predicted), (predicted, predicted), (labels, labels))
    )
    precision, recall = right / taken, right / there
    assert float(found) == pytest.approx(2 * precision * recall / (precision + recall))


def test_devices_that_share_the_examples_measure_what_one_does():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    arrays = jax.device_put((LOGITS, LABELS, MASK), rows)

    @jax.jit
    def measure(*arrays):
        return {name: measure(*arrays) for name, measure in MEASURES.items()}

    assert compute(merge_on_host(None, measure(*arrays))) == pytest.approx(measured(), rel=1e-6)


def test_nothing_counted_is_a_number_everywhere():
    nothing = np.zeros(NUM, bool)
    with np.errstate(all="raise"):
        total = merge_on_host(None, {name: measure(LOGITS, LABELS, nothing) for name, measure in MEASURES.items()})
        found = compute(total)
    assert (found["top2"], found["f1"], found["confusion_0_0"], found["perplexity"]) == (0.0, 0.0, 0, 1.0)
    assert np.isinf(Perplexity(np.float64(1e6), np.float64(1)).compute())


def test_what_cannot_be_measured_is_refused():
    wide = np.zeros((2, 33), np.float32)
    for measure, words in (
        (metrics.top_k(34), "from 1 to the number of classes, which is 33, not 34"),
        (metrics.top_k(0), "not 0"),
        (metrics.f1("binary"), "needs 2 classes, and the logits have 33"),
        (metrics.confusion_matrix(), "at most 32 classes"),
    ):
        with pytest.raises(ValueError, match=words):
            measure(wide, np.zeros(2, int), np.ones(2, bool))
    with pytest.raises(ValueError, match="no average='micro'"):
        metrics.f1("micro")
