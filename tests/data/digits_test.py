"""The digits and their splits."""

import hashlib
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxtrain.data.digits import SPLITS, Digits
from jaxtrain.errors import DataError


def rows_of(source):
    return [image.tobytes() + label.tobytes() for image, label in zip(*source.arrays.values(), strict=True)]


def test_the_splits_hold_every_digit_exactly_once():
    data = load_digits()
    images = (data.images[..., None] / 16).astype(np.float32)
    wanted = [
        image.tobytes() + label.tobytes() for image, label in zip(images, data.target.astype(np.int32), strict=True)
    ]
    found = [row for split in SPLITS for row in rows_of(Digits(split))]
    assert len(found) == 1797
    assert sorted(found) == sorted(wanted)


def test_each_split_has_its_share_of_each_class():
    classes = np.bincount(load_digits().target)
    for split, share in SPLITS.items():
        assert np.abs(np.bincount(Digits(split).arrays["label"]) - share * classes).max() <= 1


def test_the_test_split_is_the_one_that_results_are_published_for():
    assert hashlib.sha256(b"".join(rows_of(Digits("test")))).hexdigest()[:16] == "e828db672ca0d430"


def test_examples_are_images_from_paper_to_ink_and_are_read_many_at_once():
    source = Digits("validation")
    example = source[3]
    assert example["image"].shape == (8, 8, 1)
    assert example["image"].dtype == np.float32
    assert example["label"].dtype == np.int32
    assert (source.arrays["image"].min(), source.arrays["image"].max()) == (0.0, 1.0)
    np.testing.assert_array_equal(source.read_many(np.array([5, 3]))["image"][1], example["image"])


def test_another_split_is_refused():
    with pytest.raises(DataError, match=r"split='tset' is unknown.*Did you mean 'test'"):
        Digits("tset")


def test_without_scikit_learn_the_install_command_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'jaxtrain\[examples\]'"):
        Digits("train")
