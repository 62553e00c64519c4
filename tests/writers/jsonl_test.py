import json
import logging
import math
import signal
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.errors import WorkdirError
from jaxtrain.writers.jsonl import MetricsFile, read_lines
from tests import mounts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def texts(path):
    return path.read_text().splitlines()


def test_a_line_has_step_time_split_and_the_scalars_in_order(path):
    metrics = MetricsFile(path)
    metrics.write(10, "train", {"loss": 0.5, "examples_seen": 320}, 1.5)
    assert path.read_text() == '{"step": 10, "time": 1.5, "split": "train", "loss": 0.5, "examples_seen": 320}\n'


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=64), min_size=1), st.lists(st.floats(width=32), min_size=1))
def test_floats_come_back_bit_for_bit(tmp_path_factory, doubles, singles):
    path = tmp_path_factory.mktemp("m") / "metrics.jsonl"
    metrics = MetricsFile(path)
    values = {f"d{i}": x for i, x in enumerate(doubles)} | {f"s{i}": np.float32(x) for i, x in enumerate(singles)}
    metrics.write(1, "train", values, 0.0)
    metrics.close()
    [line] = read_lines(path)
    for name, value in values.items():
        if math.isnan(value):
            assert math.isnan(line[name])
        else:
            assert struct.pack("d", line[name]) == struct.pack("d", float(value))
    for i, single in enumerate(singles):
        assert np.float32(line[f"s{i}"]).tobytes() == np.float32(single).tobytes() or math.isnan(single)


def test_non_finite_numbers_are_spelled_and_the_file_stays_json(path):
    metrics = MetricsFile(path)
    metrics.write(1, "train", {"a": math.nan, "b": math.inf, "c": np.float32(-math.inf), "d": np.int64(2**40)}, 0.0)

    def refuse(constant):
        raise AssertionError(constant)

    line = json.loads(texts(path)[0], parse_constant=refuse)
    assert (line["a"], line["b"], line["c"], line["d"]) == ("NaN", "Infinity", "-Infinity", 2**40)
    [back] = metrics.lines()
    assert math.isnan(back["a"])
    assert (back["b"], back["c"]) == (math.inf, -math.inf)


def test_each_split_and_step_is_written_once(path):
    metrics = MetricsFile(path)
    assert metrics.write(1, "train", {"loss": 1.0}, 0.0)
    assert metrics.write(1, "validation", {"loss": 2.0}, 0.0)
    assert not metrics.write(1, "train", {"loss": 3.0}, 0.0)
    metrics.close()
    again = MetricsFile(path)
    assert again.has("train", 1)
    assert not again.has("train", 2)
    assert not again.write(1, "validation", {"loss": 4.0}, 0.0)
    assert [line["loss"] for line in again.lines()] == [1.0, 2.0]


@pytest.mark.parametrize("name", ["step", "time", "split"])
def test_a_metric_cannot_take_a_name_of_the_line(path, name):
    with pytest.raises(ValueError, match=name):
        MetricsFile(path).write(1, "train", {name: 1.0}, 0.0)


def write_three(path):
    metrics = MetricsFile(path)
    for step in (1, 2, 3):
        metrics.write(step, "train", {"loss": 0.1 * step}, float(step))
    metrics.close()


@pytest.mark.parametrize("num_bytes", range(1, 60, 7))
def test_a_torn_last_line_is_cut_and_the_next_one_starts_clean(path, num_bytes):
    write_three(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-num_bytes])
    assert [line["step"] for line in read_lines(path)] == ([1, 2, 3] if num_bytes == 1 else [1, 2])
    metrics = MetricsFile(path)
    metrics.write(3, "train", {"loss": 0.1 * 3}, 3.0)
    assert path.read_bytes() == whole


def test_cut_after_drops_later_lines_and_keeps_the_others_byte_for_byte(path):
    write_three(path)
    before = texts(path)
    metrics = MetricsFile(path)
    metrics.write(2, "validation", {"loss": 1.0}, 0.0)
    metrics.write(4, "train", {"loss": 1.0}, 0.0)
    metrics.cut_after(2)
    assert texts(path)[:2] == before[:2]
    assert [(line["split"], line["step"]) for line in metrics.lines()] == [
        ("train", 1),
        ("train", 2),
        ("validation", 2),
    ]
    assert not metrics.has("train", 3)
    assert metrics.write(3, "train", {"loss": 7.0}, 0.0)
    assert metrics.lines()[-1]["loss"] == 7.0


def test_lines_that_are_not_metrics_are_dropped_with_a_warning(path, caplog):
    write_three(path)
    path.write_bytes(b"\0\0\0\n[1]\n" + path.read_bytes())
    assert [line["step"] for line in MetricsFile(path).lines()] == [1, 2, 3]
    assert "dropped 2 lines" in caplog.text


def test_a_full_disk_keeps_lines_and_names_those_a_kill_would_lose(tmp_path, caplog):
    with mounts.small_disk(tmp_path / "disk") as disk:
        metrics = MetricsFile(disk / "metrics.jsonl")
        metrics.write(1, "train", {"loss": 1.0}, 0.0)
        ballast = mounts.fill(disk)
        for step in range(2, 100):
            metrics.write(step, "train", {"loss": 1.0 / step}, 0.0)
        assert metrics.unwritten[-1] == ("train", 99)
        assert metrics.has("train", 99)
        ballast.unlink()
        metrics.flush()
        assert metrics.unwritten == ()
        assert [line["step"] for line in metrics.lines()] == list(range(1, 100))
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_cut_that_finds_no_room_is_refused_and_leaves_the_file(tmp_path):
    with mounts.small_disk(tmp_path / "disk") as disk:
        metrics = MetricsFile(disk / "metrics.jsonl")
        for step in range(200):
            metrics.write(step, "train", {"loss": 1.0}, 0.0)
        mounts.fill(disk)
        before = metrics.lines()
        with pytest.raises(WorkdirError, match=r"cannot be cut after step 150: No space left"):
            metrics.cut_after(150)
        assert metrics.lines() == before


def test_a_directory_in_its_place_is_refused(path):
    path.mkdir()
    with pytest.raises(WorkdirError, match="Is a directory"):
        MetricsFile(path)


def test_lines_that_never_found_room_are_named_at_the_end(tmp_path, caplog):
    with mounts.small_disk(tmp_path / "disk") as disk:
        metrics = MetricsFile(disk / "metrics.jsonl")
        mounts.fill(disk)
        metrics.write(7, "train", {"loss": 1.0}, 0.0)
        metrics.close()
    assert "lacks these lines, the disk stayed full: train 7" in caplog.text


def test_lines_survive_sigkill_without_a_flush(cli, path):
    program = """
import sys, pathlib, itertools
from jaxtrain.writers.jsonl import MetricsFile
metrics = MetricsFile(pathlib.Path("metrics.jsonl"))
for step in itertools.count():
    metrics.write(step, "train", {"loss": 1 / 3}, 0.0)
"""
    run = cli.start(command=["-c", program])
    run.wait_for(lambda: path.exists() and path.stat().st_size > 100_000)
    run.send(signal.SIGKILL)
    run.finish()
    steps = [line["step"] for line in MetricsFile(path).lines()]
    assert steps == list(range(len(steps)))
    assert len(steps) > 1000


def test_the_lines_of_one_split_are_those_and_no_others_that_mention_it(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write(1, "train", {"validation": 1.0}, 0.0)
    file.write(1, "validation", {"loss": 2.0}, 0.0)
    file.write(2, "validation", {"loss": float("nan")}, 0.0)
    file.close()
    found = list(read_lines(tmp_path / "metrics.jsonl", "validation"))
    assert [(line["split"], line["step"]) for line in found] == [("validation", 1), ("validation", 2)]
    assert found[0]["loss"] == 2.0


def test_without_writing_it_keeps_account_of_the_same_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    other = MetricsFile(path, writes=False)  # before there is a file
    assert not other.has("train", 1)
    writer = MetricsFile(path)
    for step in (1, 2, 3):
        writer.write(step, "train", {"loss": 1.0}, 0.0)
    writer.close()
    before = path.read_bytes()
    other = MetricsFile(path, writes=False)
    other.cut_after(2)
    assert [other.has("train", step) for step in (1, 2, 3)] == [True, True, False]
    assert other.write(3, "train", {"loss": 2.0}, 0.0)
    assert not other.write(3, "train", {"loss": 2.0}, 0.0)
    assert (other.has("train", 3), other.unwritten) == (True, ())
    other.flush()
    other.close()
    assert path.read_bytes() == before
