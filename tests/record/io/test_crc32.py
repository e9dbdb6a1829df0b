"""The CRC-32 by whatever computes it, in parts and as a whole: always that of zlib."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.record import Record, SafetensorsRecorder
from phlox.record.io import crc32


@pytest.fixture(params=["isal", "zlib"])
def function(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """With the faster function, and where it is not installed."""
    if request.param == "isal":
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    crc32._fastest.cache_clear()
    yield request.param
    crc32._fastest.cache_clear()


def test_the_faster_one_is_taken_where_it_is_installed(function: str) -> None:
    assert (crc32._fastest() is not zlib.crc32) is (function == "isal")


@pytest.mark.parametrize("start", [0, 1, 0xFFFFFFFF])
@pytest.mark.parametrize("size", [0, 1, crc32.SMALL - 1, crc32.SMALL, 2 * crc32._PART, 3 * crc32._PART + 7])
def test_any_size(size: int, start: int, function: str) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32.crc32(data, start) == crc32.crc32(memoryview(data), start) == zlib.crc32(data, start)


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_checksums_of_parts_are_joined(data: bytes, start: int, part: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc32, "_PART", part)
        patch.setattr(crc32, "SMALL", 0)
        assert crc32.crc32(memoryview(data), start) == zlib.crc32(data, start)


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_joined(first: bytes, second: bytes) -> None:
    assert crc32.joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("durable", [True, False])
def test_files_are_the_same_by_either(function: str, durable: bool, tmp_path: Any) -> None:
    array = np.random.default_rng(0).normal(size=(1500, 700)).astype(np.float32)  # of several pieces
    record = Record({"a": array, "b": array[:3, 0], "c": np.arange(5)})
    recorder = SafetensorsRecorder(durable=durable)
    data = recorder.save(record, tmp_path / function).read_bytes()
    assert data == recorder.to_bytes(record)
    stored = recorder.from_bytes(data)
    np.testing.assert_array_equal(stored["a"].tensor.read(), array)
    at = data.index(array[7, 7].tobytes())
    with pytest.raises(RecordError, match="a: its checksum does not match"):
        recorder.from_bytes(data[:at] + b"\0" + data[at + 1 :])["a"].tensor.read()
