import numpy as np
import pytest

from jaxtrain.data.splits import check_splits, in_split, split_rows, stratified_rows
from jaxtrain.errors import DataError

SPLITS = {"train": 0.7, "validation": 0.2, "test": 0.1}


def test_every_key_is_in_exactly_one_split_in_about_the_stated_shares():
    bounds = check_splits(SPLITS, "train")
    keys = [f"package/module{number}.py" for number in range(3000)]
    counts = dict.fromkeys(SPLITS, 0)
    for key in keys:
        (name,) = [name for name in SPLITS if in_split(key, bounds[name])]
        counts[name] += 1
    for name, fraction in SPLITS.items():
        assert counts[name] == pytest.approx(3000 * fraction, abs=120)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 100, 101])
def test_every_row_is_in_exactly_one_split(num_rows):
    bounds = check_splits(SPLITS, "train")
    rows = np.concatenate([split_rows(num_rows, bounds[name]) for name in SPLITS])
    assert sorted(rows) == list(range(num_rows))


def test_the_order_splits_are_written_in_has_no_effect():
    assert check_splits(SPLITS, "train") == check_splits(dict(reversed(SPLITS.items())), "train")


def test_an_unknown_split_is_refused_with_the_list_and_the_nearest():
    with pytest.raises(DataError, match=r"split='validaton' is unknown.*test, train, validation.*'validation'\?"):
        check_splits(SPLITS, "validaton")


@pytest.mark.parametrize(
    "splits", [{"train": 0.9}, {"train": 0.9, "b": 0.2}, {"train": 1.5, "b": -0.5}, {"train": "1"}]
)
def test_fractions_must_be_positive_and_add_up_to_one(splits):
    with pytest.raises(DataError, match=r"splits"):
        check_splits(splits, "train")


def test_thirds_written_in_decimals_are_accepted():
    check_splits({"train": 0.3333333, "b": 0.3333333, "c": 0.3333334}, "b")


def test_stratified_splits_hold_every_row_once_and_the_same_share_of_each_class():
    labels = np.repeat([3, 0, 7], [100, 40, 11])
    labels = labels[np.random.default_rng(0).permutation(len(labels))]
    bounds = check_splits({"train": 0.7, "validation": 0.3}, "train")
    rows = {split: stratified_rows(labels, bounds[split]) for split in bounds}
    assert sorted(np.concatenate(list(rows.values()))) == list(range(len(labels)))
    assert [int((labels[rows["train"]] == label).sum()) for label in (3, 0, 7)] == [70, 28, 8]
    assert rows["train"].tolist() == sorted(rows["train"])
    np.testing.assert_array_equal(stratified_rows(labels, bounds["train"]), rows["train"])
