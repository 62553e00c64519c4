import os
import pickle

import numpy as np
import pytest

from jaxtrain.data import tokens as tokens_module
from jaxtrain.data.tokens import TokenFiles
from jaxtrain.errors import DataError


def write(path, values, dtype="uint16"):
    array = np.asarray(values, dtype)
    if path.suffix == ".npy":
        np.save(path, array)
    else:
        array.astype(array.dtype.newbyteorder("<")).tofile(path)
    return str(path)


def targets(source):
    return np.concatenate([source[i]["tokens"][1:][source[i]["mask"]] for i in range(len(source))])


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64", "uint8"])
def test_shards_are_one_sequence_of_which_no_token_is_lost(tmp_path, suffix, dtype):
    lengths = [5, 1, 11]
    values = np.arange(17) + 1
    cuts = np.split(values, np.cumsum(lengths)[:-1])
    for number, cut in enumerate(cuts):
        write(tmp_path / f"{number}{suffix}", cut, dtype)
    for seq in (1, 4, 100):
        source = TokenFiles(str(tmp_path / f"*{suffix}"), seq, dtype, vocab_size=18)
        assert targets(source).tolist() == values[1:].tolist()
        assert source[0]["tokens"].dtype == np.int32


def test_files_are_read_in_the_order_given(tmp_path):
    files = [write(tmp_path / "b.bin", [1, 2]), write(tmp_path / "a.npy", [3])]
    assert targets(TokenFiles(files, 8, "uint16", 10)).tolist() == [2, 3]


@pytest.mark.parametrize("kept", [256, 1])
def test_a_source_can_be_sent_to_another_process_after_it_was_read(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(tokens_module, "_MAX_OPEN", kept)
    files = [write(tmp_path / "a.bin", [1, 2, 3]), write(tmp_path / "b.bin", [4, 5, 6])]
    source = TokenFiles(files, 2, "uint16", 10)
    before = targets(source)
    np.testing.assert_array_equal(targets(pickle.loads(pickle.dumps(source))), before)


def test_the_fingerprint_follows_content_and_not_the_place(tmp_path):
    first = TokenFiles([write(tmp_path / "a.bin", [1, 2, 3])], 2, "uint16", 10)
    moved = TokenFiles([write(tmp_path / "b.bin", [1, 2, 3])], 2, "uint16", 10)
    other = TokenFiles([write(tmp_path / "c.bin", [1, 2, 4])], 2, "uint16", 10)
    assert first.fingerprint() == moved.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bin", b"", r"a\.bin is empty"),
        ("a.npy", b"", r"a\.npy is empty"),
        ("a.bin", b"\1\0\2", r"a\.bin is truncated or not uint16: at offset 2 only 1 of 2 bytes"),
        ("a.npy", b"no array at all", r"a\.npy is not an \.npy file"),
        ("a.bin", b"\1\0", r"a\.bin: a single token"),
    ],
)
def test_a_damaged_shard_is_refused_by_name_and_offset(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        TokenFiles([str(tmp_path / name)], 4, "uint16", 10)


def test_a_truncated_npy_is_refused_with_both_lengths(tmp_path):
    path = write(tmp_path / "a.npy", np.arange(100))
    os.truncate(path, 200)
    with pytest.raises(DataError, match=r"a\.npy is truncated: it ends at offset 200, its header announces 328 bytes"):
        TokenFiles([path], 4, "uint16", 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"files": "{dir}/gone*.bin"}, "no such file"),
        ({"files": ("{dir}/gone.bin",)}, r"cannot read .*gone\.bin: No such file"),
        ({"files": ()}, "no such file"),
        ({"dtype": "int32"}, r"a\.npy holds uint16, but dtype='int32'"),
        ({"dtype": "float32"}, "is not an integer dtype"),
        ({"dtype": "u17"}, "is no dtype"),
        ({"seq": 0}, "seq=0"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"vocab_size": 5}, r"a\.npy: token 7 at offset 132 is not in the vocabulary of 5"),
        ({"files": ("{dir}/two_dims.npy",)}, r"shape \(2, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, options, message):
    write(tmp_path / "a.npy", [1, 2, 7])
    np.save(tmp_path / "two_dims.npy", np.zeros((2, 2), np.uint16))
    options = {"files": str(tmp_path / "a.npy"), "seq": 4, "dtype": "uint16", "vocab_size": 10, **options}
    if isinstance(options["files"], str):
        options["files"] = options["files"].format(dir=tmp_path)
    else:
        options["files"] = [name.format(dir=tmp_path) for name in options["files"]]
    with pytest.raises(DataError, match=message):
        TokenFiles(**options)


def test_a_negative_id_is_refused(tmp_path):
    with pytest.raises(DataError, match="token -1 at offset 4"):
        TokenFiles([write(tmp_path / "a.bin", [1, -1], "int32")], 4, "int32", 10)


def test_an_id_the_scan_at_start_has_not_seen_is_refused_when_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "_SCAN_TOKENS", 4)
    values = np.zeros(1000)
    values[500] = 10
    source = TokenFiles([write(tmp_path / "a.bin", values)], 10, "uint16", 10)
    source[0]
    with pytest.raises(DataError, match="token 10 at offset 1000"):
        source[50]


def test_the_scan_at_start_sees_both_ends_of_every_shard(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "_SCAN_TOKENS", 32)
    for bad in (0, 499):
        values = np.zeros(500)
        values[bad] = 10
        files = [write(tmp_path / "a.bin", np.zeros(500)), write(tmp_path / "b.bin", values)]
        with pytest.raises(DataError, match=f"b.bin: token 10 at offset {2 * bad}"):
            TokenFiles(files, 10, "uint16", 10)


def test_a_shard_cut_short_during_the_run_is_an_error_and_no_crash(tmp_path):
    path = write(tmp_path / "a.bin", np.zeros(50_000))
    source = TokenFiles([path], 10, "uint16", 10)
    source[4000]
    os.truncate(path, 50_000)
    source[0]
    with pytest.raises(DataError, match=r"a\.bin was cut short during the run: it now ends at offset"):
        source[4000]
    with pytest.raises(DataError, match=r"a\.bin changed during the run: 50000 bytes, it had 100000"):
        pickle.loads(pickle.dumps(source))[0]
