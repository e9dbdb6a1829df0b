"""`EventFile`: writes the event files that TensorBoard reads, without TensorFlow.

A file is a list of TFRecords: length (uint64), its checksum, an `Event` of Protocol Buffers, its checksum. A checksum
is the CRC-32C (Castagnoli), rotated and shifted by a constant ("masked"). The fields' numbers are those of TensorFlow's
`event.proto`, `summary.proto` and `tensor.proto`, and of the hparams plugin's `plugin_data.proto`.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phlox.train.values import Histogram, Image

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
"""The wire types of Protocol Buffers."""
_STRING = 7
"""DT_STRING of TensorFlow's `types.proto`."""


def _crc_table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """A TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative values as two's complement
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _field(number: int, value: bytes | str | int) -> bytes:
    """A field of bytes, a text, a message, or a whole number."""
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _float(number: int, value: float) -> bytes:
    try:
        data = struct.pack("<f", value)
    except OverflowError:  # too large for float32
        data = struct.pack("<f", float("inf") if value > 0.0 else float("-inf"))
    return _varint(number << 3 | _FLOAT) + data


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | _DOUBLE) + struct.pack("<d", value)


def event(wall_time: float, step: int, *content: bytes) -> bytes:
    """An `Event`."""
    return _double(1, wall_time) + _field(2, step) + b"".join(content)


def summary(values: Mapping[str, Any]) -> bytes:
    """The content of an event: numbers, histograms and images by tag."""
    return _field(5, b"".join(_field(1, _field(1, tag) + _summarized(value)) for tag, value in values.items()))


def _summarized(value: Any) -> bytes:
    if isinstance(value, Histogram):
        return _field(5, _histogram(value))
    if isinstance(value, Image):
        height, width, channels = value.pixels.shape
        return _field(4, _field(1, height) + _field(2, width) + _field(3, channels) + _field(4, value.png))
    return _float(2, value)


def _histogram(histogram: Histogram) -> bytes:
    """A `HistogramProto`. Its bins have no left edges: an empty bin before the first one says where that begins."""
    total, squares = histogram.size * histogram.mean, histogram.size * (histogram.std**2 + histogram.mean**2)
    moments = (histogram.min, histogram.max, histogram.size, total, squares) if histogram.size else (0.0,) * 5
    parts = [_double(1 + number, value) for number, value in enumerate(moments)]
    for number, numbers in ((6, histogram.edges), (7, [0, *histogram.counts.tolist()])):
        parts.append(_field(number, struct.pack(f"<{len(numbers)}d", *numbers)))
    return b"".join(parts)


def text(tag: str, markdown: str) -> bytes:
    """The content of an event: a text that the text plugin shows."""
    metadata = _field(1, _field(1, "text"))
    tensor = _field(1, _STRING) + _field(2, _field(2, _field(1, 1))) + _field(8, markdown)
    return _field(5, _field(1, _field(1, tag) + _field(8, tensor) + _field(9, metadata)))


def hparams(values: Mapping[str, str | float | bool], wall_time: float) -> bytes:
    """The content of an event: the hyper-parameters of a run, for the table of the hparams plugin."""
    items = b"".join(_field(1, _field(1, name) + _field(2, _value(value))) for name, value in values.items())
    session = _field(3, items + _double(5, wall_time))
    metadata = _field(1, _field(1, "hparams") + _field(2, session))
    return _field(5, _field(1, _field(1, "_hparams_/session_start_info") + _field(9, metadata)))


def _value(value: str | float | bool) -> bytes:
    """A `google.protobuf.Value`."""
    if isinstance(value, bool):
        return _field(4, int(value))
    return _field(3, value) if isinstance(value, str) else _double(2, value)


class EventFile:
    """A new event file in the folder of a run. Each event is written, and the file closed, at once.

    Args:
        folder: the folder; it is created if it does not exist.
        resume_step: the first step of a resumed training: TensorBoard hides events from this step on in older files.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        first = record(event(now, 0, _field(3, "brain.Event:2")))
        if resume_step is not None:
            first += record(event(now, resume_step, _field(7, _field(1, 1))))  # SessionLog.START
        with self.path.open("xb") as file:
            file.write(first)

    def write(self, step: int, *content: bytes) -> None:
        """Write an event at a step."""
        with self.path.open("ab") as file:
            file.write(record(event(time.time(), step, *content)))
