"""Event files are read back by a reader of our own: TFRecord framing, checksums and TensorBoard's rule of purging."""

import logging
import math
import shutil
import struct
import time
import zlib

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from jaxtrain import redact
from jaxtrain.writers.tensorboard import TensorBoard, encode_png
from tests import mounts


def crc32c(data):
    """RFC 3720, B.4, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(path):
    content, position = path.read_bytes(), 0
    while position < len(content):
        header = content[position : position + 8]
        [length] = struct.unpack("<Q", header)
        data = content[position + 12 : position + 12 + length]
        assert struct.unpack("<I", content[position + 8 : position + 12])[0] == masked(header)
        assert struct.unpack("<I", content[position + 12 + length : position + 16 + length])[0] == masked(data)
        yield Event.FromString(data)
        position += 16 + length


def shown(directory):
    """(tag, step, value) as TensorBoard shows them: a session start forgets what was at its step and later."""
    values = []
    for path in sorted(directory.iterdir()):
        for number, event in enumerate(events(path)):
            assert (number == 0) == (event.file_version == "brain.Event:2")
            if event.session_log.status == SessionLog.START:
                values = [value for value in values if value[1] < event.step]
            values += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return values


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_check_sum_of_the_test_is_the_published_one():
    assert crc32c(b"123456789") == 0xE3069283


def test_scalars_are_there_at_once_with_their_step_and_time(tmp_path):
    writer = TensorBoard(tmp_path, purge_step=1)
    writer.write_scalars(10, "train", {"loss": 0.5, "lr": math.inf}, 1234.5)
    writer.write_scalars(10, "validation", {"loss": np.float32(0.1)}, 1235.5)
    assert shown(tmp_path) == [
        ("train/loss", 10, 0.5),
        ("train/lr", 10, math.inf),
        ("validation/loss", 10, np.float32(0.1)),
    ]
    [path] = tmp_path.iterdir()
    assert [event.wall_time for event in events(path)][2:] == [1234.5, 1235.5]


def test_what_a_killed_launch_wrote_after_its_checkpoint_is_purged(tmp_path):
    first = TensorBoard(tmp_path, purge_step=1)
    for step in (1, 2, 3, 4):
        first.write_scalars(step, "train", {"loss": 1.0}, 0.0)
    second = TensorBoard(tmp_path, purge_step=3)  # in the same second, before the first was closed
    for step in (3, 4, 5):
        second.write_scalars(step, "train", {"loss": 2.0}, 0.0)
    assert [(step, value) for _, step, value in shown(tmp_path)] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_later_launch_comes_last_although_the_clock_was_set(tmp_path, monkeypatch, jump):
    TensorBoard(tmp_path, purge_step=1).write_scalars(7, "train", {"loss": 1.0}, 0.0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    TensorBoard(tmp_path, purge_step=7).write_scalars(7, "train", {"loss": 2.0}, 0.0)
    assert shown(tmp_path) == [("train/loss", 7, 2.0)]


def test_a_deleted_directory_is_one_warning_and_the_rest_is_readable(tmp_path, caplog):
    directory = tmp_path / "tensorboard"
    directory.mkdir()
    writer = TensorBoard(directory, purge_step=1)
    writer.write_scalars(1, "train", {"loss": 1.0}, 0.0)
    shutil.rmtree(directory)
    writer.write_scalars(2, "train", {"loss": 2.0}, 0.0)
    writer.write_scalars(3, "train", {"loss": 3.0}, 0.0)
    writer.close()
    assert shown(directory) == [("train/loss", 2, 2.0), ("train/loss", 3, 3.0)]
    assert len(warnings_of(caplog)) == 1


def test_a_full_disk_does_not_hold_up_the_training(tmp_path, caplog):
    with mounts.small_disk(tmp_path / "disk") as disk:
        directory = disk / "tensorboard"
        directory.mkdir()
        writer = TensorBoard(directory, purge_step=1)
        ballast = mounts.fill(disk)
        for step in range(1, 200):  # tensorboardX's own writer blocks for ever at the 20th or so
            writer.write_scalars(step, "train", {"loss": float(step)}, 0.0)
        ballast.unlink()
        writer.close()
        assert shown(directory) == [("train/loss", step, step) for step in range(1, 200)]
    assert len(warnings_of(caplog)) == 1


def test_texts_and_images_arrive_and_secrets_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(redact, "_redactor", redact.Redactor())
    redact.add("s3ntinel-value")
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    writer = TensorBoard(tmp_path, purge_step=1)
    writer.write_text(3, "sample", "it was s3ntinel-value")
    writer.write_image(4, "picture", image)
    [path] = tmp_path.iterdir()
    text, picture = list(events(path))[2:]
    assert b"it was <redacted>" in text.SerializeToString()
    assert b"s3ntinel" not in path.read_bytes()
    [value] = picture.summary.value
    assert (picture.step, value.tag, value.image.height, value.image.width) == (4, "picture", 2, 4)
    assert value.image.encoded_image_string == encode_png(image)


def decode_png(data):
    """The inverse for files without filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    position, chunks = 8, {}
    while position < len(data):
        [length] = struct.unpack(">I", data[position : position + 4])
        kind, content = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        assert struct.unpack(">I", data[position + 8 + length : position + 12 + length])[0] == zlib.crc32(
            kind + content
        )
        chunks[kind] = content
        position += 12 + length
    width, height, depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (depth, rows[:, 0].any()) == (8, False)
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[color])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_image_comes_back_pixel_for_pixel(channels):
    image = np.random.default_rng(0).integers(256, size=(5, 7, channels), dtype=np.uint8)
    np.testing.assert_array_equal(decode_png(encode_png(image)), image)


@pytest.mark.parametrize("image", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3))])
def test_what_is_no_image_is_told(image):
    with pytest.raises(ValueError, match="1, 3 or 4 channels, not"):
        encode_png(image)
