import dataclasses
import hashlib
import json

import pytest

from jaxtrain.checkpoint import manifest as manifests
from jaxtrain.checkpoint.leaves import Leaf
from jaxtrain.checkpoint.manifest import DamagedError, Manifest

DRAFT = Manifest(
    step=7,
    time=1.25,
    keep=True,
    config_hash="abc",
    versions={"jax": "0"},
    info={"position": 10**12, "secs": 0.1, "nan": float("inf"), "name": "ü"},
    leaves={"params/w": Leaf((2, 3), "bfloat16"), "key": Leaf((), "key<fry>")},
    files={},
)


@pytest.fixture
def written(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/data").write_bytes(b"12345")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
        (tmp_path / name).write_text("Orbax rewrites this later")
    manifests.write(tmp_path, DRAFT)
    return tmp_path


def test_a_manifest_reads_back_as_written_with_size_and_hash_of_every_final_file(written):
    read = manifests.read(written)
    assert dataclasses.replace(read, files={}) == DRAFT
    assert set(read.files) == {"d/data", "empty"}
    assert read.files["d/data"].size == 5
    assert read.files["d/data"].sha256 == hashlib.sha256(b"12345").hexdigest()


def test_any_changed_byte_of_a_manifest_is_noticed(written):
    path = written / "manifest.json"
    good = path.read_bytes()
    for index in range(len(good)):
        path.write_bytes(good[:index] + bytes([good[index] ^ 1]) + good[index + 1 :])
        with pytest.raises(DamagedError):
            manifests.read(written)
    path.write_bytes(good)
    manifests.read(written)


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"{}", b"null", b"\xff\xfe", b'{"leaves": 3}', b"[" * 100_000])
def test_a_garbled_manifest_is_damage_and_no_other_error(written, garbage):
    (written / "manifest.json").write_bytes(garbage)
    with pytest.raises(DamagedError):
        manifests.read(written)


def test_a_value_edited_by_hand_is_noticed(written):
    path = written / "manifest.json"
    content = json.loads(path.read_text())
    content["info"]["position"] += 1
    path.write_text(json.dumps(content, sort_keys=True, indent=1))
    with pytest.raises(DamagedError, match="own checksum"):
        manifests.read(written)


def test_a_missing_manifest_is_named(tmp_path):
    with pytest.raises(DamagedError, match=r"manifest\.json is missing"):
        manifests.read(tmp_path)
