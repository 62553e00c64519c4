import json
import logging
import os
import shutil
import threading

import pytest

from jaxtrain import files, redact
from tests import mounts


@pytest.fixture
def small_disk(tmp_path):
    with mounts.small_disk(tmp_path / "small") as path:
        yield path


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_full_disk_is_one_warning_and_no_lost_byte(small_disk, caplog):
    file = files.AppendFile(small_disk / "a")
    lines = [f"line {i} {'.' * 100}\n".encode() for i in range(300)]
    for line in lines[:20]:
        file.write(line)
    ballast = mounts.fill(small_disk)
    for line in lines[20:200]:  # the first of them still fit into the last page, one of them in part
        file.write(line)
    assert file.num_pending > 100
    assert b"".join(lines).startswith((small_disk / "a").read_bytes())
    assert len(warnings_of(caplog)) == 1
    assert "No space left" in warnings_of(caplog)[0]
    ballast.unlink()
    for line in lines[200:]:
        file.write(line)
    assert file.num_pending == 0
    assert (small_disk / "a").read_bytes() == b"".join(lines)
    file.close()
    assert len(warnings_of(caplog)) == 1


def test_a_disk_that_stays_full_is_told_at_the_end(small_disk, caplog):
    file = files.AppendFile(small_disk / "a")
    mounts.fill(small_disk)
    file.write(b"x" * 5000)
    file.close()
    assert warnings_of(caplog)[-1].endswith("1 records could not be written and are lost")


def test_a_deleted_directory_is_made_again_with_one_warning(tmp_path, caplog):
    (tmp_path / "d").mkdir()
    file = files.AppendFile(tmp_path / "d" / "a", header=b"header\n")
    file.write(b"1\n")
    shutil.rmtree(tmp_path / "d")
    file.write(b"2\n")
    file.write(b"3\n")
    assert (tmp_path / "d" / "a").read_bytes() == b"header\n2\n3\n"
    assert len(warnings_of(caplog)) == 1
    shutil.rmtree(tmp_path / "d")
    file.write(b"4\n")
    assert (tmp_path / "d" / "a").read_bytes() == b"header\n4\n"
    assert len(warnings_of(caplog)) == 1


def test_a_workdir_that_is_gone_is_not_made_again(tmp_path):
    (tmp_path / "w" / "d").mkdir(parents=True)
    file = files.AppendFile(tmp_path / "w" / "d" / "a")
    shutil.rmtree(tmp_path / "w")
    file.write(b"1\n")
    assert file.num_pending == 1
    assert not (tmp_path / "w").exists()


def test_threads_do_not_mix_records(tmp_path):
    file = files.AppendFile(tmp_path / "a")

    def write(letter):
        for _ in range(50):
            file.write(letter * 50 + b"\n")

    threads = [threading.Thread(target=write, args=[letter]) for letter in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "a").read_bytes().splitlines()
    assert len(lines) == 200
    assert all(len(set(line)) == 1 for line in lines)


def test_a_full_disk_leaves_the_old_content(small_disk):
    path = small_disk / "status.json"
    files.replace_json(path, {"state": "running"})
    mounts.fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        files.replace_json(path, {"state": "x" * 10_000})
    assert json.loads(path.read_text()) == {"state": "running"}
    assert sorted(os.listdir(small_disk)) == ["ballast", "status.json"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "a.json"
    documents = [{"x": [n] * 2000} for n in range(2)]
    files.replace_json(path, documents[0])
    done = threading.Event()

    def write():
        for turn in range(20):
            files.replace_json(path, documents[turn % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        assert json.loads(path.read_bytes()) in documents
    thread.join()


def test_secrets_are_removed_from_keys_and_values_before_encoding(tmp_path, monkeypatch):
    monkeypatch.setattr(redact, "_redactor", redact.Redactor())
    secret = 'sünt"el\\7'
    redact.add(secret)
    files.replace_json(tmp_path / "a", {"x": [f"a {secret} b"], f"k{secret}": ({"y": secret},), "n": 1, "none": None})
    text = (tmp_path / "a").read_text()
    assert json.loads(text) == {"x": ["a <redacted> b"], "k<redacted>": [{"y": "<redacted>"}], "n": 1, "none": None}
