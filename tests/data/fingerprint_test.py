import os
import shutil

import numpy as np
import pytest

from jaxtrain.data import fingerprint
from jaxtrain.data.fingerprint import combine, file_digest, fingerprint_arrays
from jaxtrain.errors import DataError


def test_a_digest_follows_content_and_neither_path_nor_time(tmp_path):
    first = tmp_path / "a.bin"
    first.write_bytes(b"content")
    copy = tmp_path / "elsewhere" / "b.bin"
    copy.parent.mkdir()
    shutil.copy(first, copy)
    os.utime(copy, (1, 1))
    assert file_digest(first) == file_digest(copy)
    copy.write_bytes(b"contenT")
    assert file_digest(first) != file_digest(copy)


@pytest.mark.parametrize("changed", [0, 50, 999])
def test_a_large_file_is_judged_by_size_and_spaced_blocks(tmp_path, monkeypatch, changed):
    monkeypatch.setattr(fingerprint, "_FULL_BYTES", 100)
    monkeypatch.setattr(fingerprint, "_BLOCK_BYTES", 20)
    content = bytearray(1000)
    path = tmp_path / "large.bin"
    path.write_bytes(content)
    before = file_digest(path)
    path.write_bytes(content + b"\0")
    assert file_digest(path) != before
    content[changed] = 1
    path.write_bytes(content)
    assert file_digest(path) != before


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.bin: No such file"):
        file_digest(tmp_path / "gone.bin")


def test_parts_cannot_flow_into_each_other():
    assert combine(["ab", "c"]) != combine(["a", "bc"])


def test_arrays_are_judged_by_name_shape_dtype_and_value():
    base = {"x": np.arange(6)}
    others = [
        {"y": np.arange(6)},
        {"x": np.arange(6).reshape(2, 3)},
        {"x": np.arange(6).astype(np.int32)},
        {"x": np.arange(1, 7)},
    ]
    digests = [fingerprint_arrays(arrays) for arrays in (base, *others)]
    assert len(set(digests)) == len(digests)
    assert fingerprint_arrays({"x": np.arange(12)[::2] // 2}) == digests[0]
