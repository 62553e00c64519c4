"""TensorBoard event files: the numbers of `metrics.jsonl` again, x = step.

tensorboardX gives the records, `AppendFile` writes them. tensorboardX's own SummaryWriter hands them to a thread that
dies on a full disk, after which its bounded queue blocks the training for ever; and it writes on into a deleted file.
"""

import re
import socket
import struct
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from jaxtrain.files import AppendFile
from jaxtrain.redact import redact


class TensorBoard:
    """Writes one event file per launch into `directory`.

    purge_step: TensorBoard forgets what earlier launches wrote at this step and later.
    """

    def __init__(self, directory: Path, purge_step: int):
        """Raises OSError if the file cannot be opened."""
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        self._file = AppendFile(_next_path(directory), header=_record(version))
        self._put(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)), time.time())

    def write_scalars(self, step: int, split: str, scalars: Mapping[str, float], time: float) -> None:
        values = [Summary.Value(tag=f"{split}/{redact(k)}", simple_value=float(v)) for k, v in scalars.items()]
        self._put(Event(step=step, summary=Summary(value=values)), time)

    def write_text(self, step: int, name: str, text: str) -> None:
        self._put(Event(step=step, summary=summary.text(redact(name), redact(text))), time.time())

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        height, width, channels = image.shape
        content = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=encode_png(image))
        value = Summary.Value(tag=redact(name), image=content)
        self._put(Event(step=step, summary=Summary(value=[value])), time.time())

    def close(self) -> None:
        self._file.close()

    def _put(self, event: Any, wall_time: float) -> None:
        event.wall_time = wall_time
        self._file.write(_record(event))


def encode_png(image: np.ndarray) -> bytes:
    """PNG (RFC 2083) of image: [height, width, channels] uint8, channels 1, 3 or 4. Raises ValueError for another."""
    color_types = {1: 0, 3: 2, 4: 6}
    if image.ndim != 3 or image.dtype != np.uint8 or image.shape[2] not in color_types:
        raise ValueError(
            f"an image is [height, width, channels] uint8 with 1, 3 or 4 channels, not {image.shape} {image.dtype}"
        )
    height, width, channels = image.shape
    no_filter = np.zeros((height, 1), np.uint8)  # the first byte of each row
    rows = np.concatenate([no_filter, image.reshape(height, width * channels)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, color_types[channels], 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes()))
        + chunk(b"IEND", b"")
    )


def _record(event: Any) -> bytes:
    """TFRecord framing: length, its checksum, data, its checksum."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def _next_path(directory: Path) -> Path:
    """A new name that sorts after all others there.

    TensorBoard reads the files in the order of their names, which begin with a time in seconds: a launch in the same
    second, or after the clock was set back, must still come last.
    """
    stamps = [re.match(r"events\.out\.tfevents\.(\d{10})\.", path.name) for path in directory.iterdir()]
    last = max((int(stamp[1]) for stamp in stamps if stamp), default=0)
    return directory / f"events.out.tfevents.{max(int(time.time()), last + 1):010d}.{socket.gethostname()}"
