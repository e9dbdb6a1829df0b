"""Records in open binary files and in bytes: written to and read from whatever has `write` and `read`."""

from __future__ import annotations

import bz2
import gzip
import io
import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox import nn
from phlox.record import (
    HALF,
    BinaryRecorder,
    GgufRecorder,
    JsonRecorder,
    MessagePackRecorder,
    NpzRecorder,
    Record,
    RecordError,
    SafetensorsRecorder,
    load,
    save,
)

RECORD = Record({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": 7})
RECORDERS = [SafetensorsRecorder, MessagePackRecorder, BinaryRecorder, JsonRecorder, NpzRecorder, GgufRecorder]


def check(record: Record) -> None:
    assert record["w"].tensor.read().tolist() == [[0, 1, 2], [3, 4, 5]] and record["step"] == 7


class OnlyWrites:
    """The least that can be written to."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: Any) -> None:
        self.data += bytes(data)


class Slow(io.RawIOBase):
    """A raw file that takes three bytes at a time."""

    def __init__(self, can_seek: bool) -> None:
        self.buffer, self.can_seek = io.BytesIO(), can_seek

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.can_seek

    def write(self, data: Any) -> int:
        return self.buffer.write(bytes(data[:3]))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.buffer.seek(offset, whence)

    def tell(self) -> int:
        return self.buffer.tell()


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("recorder", RECORDERS, ids=lambda one: one.format)
def test_every_format_and_sort_of_file(recorder: Any, compression: Any, tmp_path: Path) -> None:
    one = recorder(compression=compression)
    expected = one.to_bytes(RECORD)
    memory = io.BytesIO()
    assert one.save(RECORD, memory) is memory and memory.getvalue() == expected
    for buffering in (0, -1):
        with (tmp_path / "x").open("wb", buffering=buffering) as file:
            assert one.save(RECORD, file) is file and not file.closed
        assert (tmp_path / "x").read_bytes() == expected
        with (tmp_path / "x").open("rb", buffering=buffering) as file:
            check(load(file))
    for stream in (OnlyWrites(), Slow(can_seek=True), Slow(can_seek=False)):
        one.save(RECORD, stream)
        assert (stream.data if isinstance(stream, OnlyWrites) else stream.buffer.getvalue()) == expected
    for content in (expected, bytearray(expected), memoryview(expected), io.BytesIO(expected)):
        check(one.load(content))
    check(load(io.BytesIO(expected)))


def test_a_part_of_a_file() -> None:
    file = io.BytesIO(b"before")
    file.seek(0, 2)
    save(RECORD, file)
    file.seek(6)
    check(load(file))
    assert file.getvalue().startswith(b"before") and file.tell() == len(file.getvalue())


def test_files_that_cannot_go_back(tmp_path: Path) -> None:
    for module in (gzip, bz2):
        with module.open(tmp_path / "x", "wb") as file:
            save(RECORD, file)
        with module.open(tmp_path / "x", "rb") as file:
            check(load(file))
    (tmp_path / "y").write_bytes(b"before")
    with (tmp_path / "y").open("ab") as file:
        save(RECORD, file)
    check(load((tmp_path / "y").read_bytes()[6:]))
    reads, writes = os.pipe()

    def write() -> None:
        with os.fdopen(writes, "wb", buffering=0) as file:
            save(RECORD, file)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reads, "rb") as file:
        check(load(file))
    thread.join()


def test_the_name_of_a_file_says_the_format(tmp_path: Path) -> None:
    for name, format in (("x.npz", "npz"), ("x.json", "json"), ("x", "safetensors")):
        with (tmp_path / name).open("wb") as file:
            save(RECORD, file)
        header = load(tmp_path / name).header
        assert header is not None and header.format == format
    with (tmp_path / "x.pt").open("wb") as file, pytest.raises(RecordError, match=r"x\.pt: Phlox writes no such file"):
        save(RECORD, file)
    with tempfile.TemporaryFile() as file:
        save(RECORD, file)
        file.seek(0)
        check(load(file))


@pytest.mark.parametrize("recorder", RECORDERS, ids=lambda one: one.format)
def test_what_fails_leaves_nothing(recorder: Any, tmp_path: Path) -> None:
    bad = Record({"a": np.ones(100_000, np.float32), "b": np.array([1e30])})
    memory, slow, only = io.BytesIO(b"before"), Slow(can_seek=False), OnlyWrites()
    memory.seek(0, 2)
    for stream in (memory, slow, only):
        with pytest.raises(RecordError, match=r"cannot save .*: b: the value 1e\+30 does not fit float16"):
            recorder(HALF).save(bad, stream)
    assert memory.getvalue() == b"before" and not slow.buffer.getvalue() and not only.data
    with (tmp_path / "x").open("wb", buffering=0) as file, pytest.raises(RecordError, match="does not fit"):
        recorder(HALF).save(bad, file)
    assert not (tmp_path / "x").read_bytes()


def test_modules(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3).init(seed=0), nn.Linear(2, 3)
    memory = io.BytesIO()
    assert model.save(memory, precision=HALF) is memory
    assert other.load(memory.getvalue()).ok and other.load(io.BytesIO(memory.getvalue())).ok
    np.testing.assert_allclose(other.weight.val().numpy(), model.weight.val().numpy(), atol=1e-3)
    path = model.save(tmp_path / "m")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = bytes(mapped)
    assert other.load(data).ok


def test_bad_input(tmp_path: Path) -> None:
    model = nn.Linear(2, 3).init(seed=0)
    with (
        (tmp_path / "t").open("w") as file,
        pytest.raises(RecordError, match=r"open it in binary mode, as open\(path, 'wb"),
    ):
        model.save(file)
    with (tmp_path / "t").open() as file, pytest.raises(RecordError, match=r"reading it gives str; open it in binary"):
        model.load(file)  # pyright: ignore[reportArgumentType]
    for wrong in (3, None, [1], {"w": 1}):
        with pytest.raises(RecordError, match="expected a path, an open binary file or bytes, not "):
            model.load(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(RecordError, match="expected a path or an open binary file, not "):
            model.save(wrong)  # pyright: ignore[reportArgumentType, reportCallIssue]
    for content in (b"", b"garbage", io.BytesIO()):
        with pytest.raises(RecordError, match="a file in memory: "):
            model.load(content)
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(RecordError, match="it cannot be read: .*closed"):
        load(closed)
    with (tmp_path / "t").open("rb") as file, pytest.raises(RecordError, match="cannot save .*t: "):
        model.save(file)
