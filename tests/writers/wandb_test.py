import json
import os
import struct
import sys
import time

import numpy as np
import pytest

from jaxtrain import redact
from jaxtrain.writers.wandb import WandB

BLOCK, FULL, LAST = 32768, 1, 4  # of LevelDB's log format, which W&B writes
KEY = "5eC4e7" * 7


def records(path):
    """The records of a .wandb file: chunks with headers of 7 bytes in blocks, after the 7 bytes of the file's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = path.read_bytes(), 7, b""
    while at < len(content):
        if BLOCK - at % BLOCK < 7:  # too short for a header: padding
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
            whole = b""


def launch(workdir, step):
    writer = WandB("project", workdir, "run7", "tiny", {"seed": 3}, mode="offline")
    writer.write_scalars(step, "train", {"loss": step / 4}, time.time())
    writer.write_text(step, "sample", f"the key is {KEY}")
    writer.write_image(step, "image", np.full((2, 2, 1), 9, np.uint8))
    writer.close()


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Two launches of one run; the second makes step 4 once more."""
    path = tmp_path_factory.mktemp("run")
    (path / "trackers").mkdir()
    redact.add(KEY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY[:40])
        for step in (5, 4):
            launch(path, step)
            time.sleep(1.1)  # the names of its directories end in seconds
    return path


def test_both_launches_write_to_one_run_with_the_steps_of_the_training(workdir):
    seen = []
    for path in sorted(workdir.glob("trackers/wandb/offline-run-*/*.wandb")):
        found = list(records(path))
        run = next(record.run for record in found if record.WhichOneof("record_type") == "run")
        assert (run.run_id, run.display_name, run.project) == ("run7", "tiny", "project")
        assert {item.key: item.value_json for item in run.config.update}["seed"] == "3"
        for record in found:
            items = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if "train/loss" in items:
                seen.append((json.loads(items["step"]), json.loads(items["train/loss"])))
    assert seen == [(5, 1.25), (4, 1.0)]


def test_no_key_is_in_any_file(workdir):
    contents = [path.read_bytes() for path in workdir.rglob("*") if path.is_file()]
    assert any(b"<redacted>" in content for content in contents)
    assert not any(KEY[:40].encode() in content for content in contents)


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxtrain\[trackers\]'"):
        WandB("project", tmp_path, "run7", "tiny", {})
    assert os.listdir(tmp_path) == []
