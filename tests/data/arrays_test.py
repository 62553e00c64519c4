import numpy as np
import pytest

from jaxtrain.data.arrays import Arrays
from jaxtrain.errors import DataError


def make():
    return {"inputs": np.arange(20.0).reshape(10, 2), "labels": np.arange(10)}


def test_row_i_of_each_array_is_example_i(tmp_path):
    np.savez(tmp_path / "d.npz", **make())
    for source in (Arrays(arrays=make()), Arrays(tmp_path / "d.npz")):
        assert len(source) == 10
        assert source[3]["inputs"].tolist() == [6.0, 7.0]
        assert source[3]["labels"].shape == ()
        assert int(source[3]["labels"]) == 3
        assert source.zeros()["inputs"].tolist() == [0.0, 0.0]


def test_splits_hold_every_row_exactly_once():
    rows = [
        int(source[i]["labels"])
        for split in ("train", "validation")
        for source in [Arrays(arrays=make(), split=split, splits={"train": 0.6, "validation": 0.4})]
        for i in range(len(source))
    ]
    assert len(rows) == 10
    assert sorted(rows) == list(range(10))


def test_the_fingerprint_follows_values_and_split():
    assert Arrays(arrays=make()).fingerprint() == Arrays(arrays=make()).fingerprint()
    assert Arrays(arrays=make(), split="train").fingerprint() != Arrays(arrays=make()).fingerprint()


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_a_truncated_or_empty_file_is_refused_by_name(tmp_path, keep):
    path = tmp_path / "d.npz"
    np.savez(path, **make())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"d\.npz is not an \.npz file"):
        Arrays(path)


def test_a_damaged_file_is_refused_by_name(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, **make())
    content = bytearray(path.read_bytes())
    content[content.find(b"NUMPY") + 130] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"d\.npz is damaged"):
        Arrays(path)


def test_pickled_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.array([{}, {}], dtype=object))
    with pytest.raises(DataError, match=r"d\.npz is damaged or not plain arrays"):
        Arrays(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "gone.npz"}, r"gone\.npz: No such file"),
        ({}, "give either path"),
        ({"path": "a.npz", "arrays": {"x": np.zeros(2)}}, "give either path"),
        ({"arrays": {"x": np.zeros(2), "y": np.zeros(3)}}, r"'x': 2, 'y': 3"),
        ({"arrays": {"x": np.zeros(())}}, "same first dim"),
        ({"arrays": {"x": np.zeros((0, 2))}}, "holds no example"),
        ({"arrays": {}}, "holds no example"),
        ({"arrays": {"x": np.zeros(1)}, "split": "validation"}, "has none of the 1 examples"),
        ({"arrays": {"x": np.zeros(9)}, "split": "trian"}, r"Did you mean 'train'\?"),
        ({"arrays": {"x": np.zeros(9)}, "splits": {"train": 1.0}}, "choose one of train"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        Arrays(**arguments)
