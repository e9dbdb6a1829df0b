"""Compression: read by the standard library and by zstd, bytes that repeat, and bounds on what unpacks."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.record.io.compression import compressed, compression_of, decompressed, unpack_limit

zstd = pytest.importorskip("backports.zstd")
THEIRS: dict[Any, Any] = {"gzip": gzip.decompress, "zstd": zstd.decompress, None: bytes}
EACH = pytest.mark.parametrize("compression", [None, "gzip", "zstd"])


def packed(data: bytes, compression: Any) -> bytes:
    file = io.BytesIO()
    with compressed(file, compression) as stream:
        for start in range(0, len(data), 1000):
            stream.write(data[start : start + 1000])
    return file.getvalue()


@EACH
@given(st.binary(min_size=1, max_size=3000))
def test_others_unpack_it_and_we_do(compression: Any, data: bytes) -> None:
    file = packed(data, compression)
    assert file == packed(data, compression)
    assert THEIRS[compression](file) == data
    if compression is not None:
        assert compression_of(memoryview(file)) == compression
        assert bytes(decompressed(memoryview(file))) == data


@EACH
def test_large_files_of_several_blocks(compression: Any) -> None:
    data = bytes(range(256)) * 20_000
    found = decompressed(memoryview(packed(data, compression)))
    assert found.readonly and bytes(found) == data


def test_what_others_have_packed() -> None:
    assert bytes(decompressed(memoryview(gzip.compress(b"a") + gzip.compress(b"b")))) == b"ab"
    assert bytes(decompressed(memoryview(zstd.compress(b"a" * 999)))) == b"a" * 999


def test_what_is_not_compressed_is_not_copied() -> None:
    data = b"\x1f\x8b\x08\0\0\0\0\0{"  # a header of safetensors that is as long as gzip's first bytes say
    assert compression_of(memoryview(data)) is None
    assert decompressed(memoryview(data)).obj is data


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_bombs_are_refused(compression: Any) -> None:
    file = memoryview(packed(bytes(10_000_000), compression))
    with pytest.raises(RecordError, match=r"unpack to more than 5000000.* decompression bomb .*max_bytes"):
        decompressed(file, 5_000_000)
    assert len(decompressed(file, 10_000_000)) == 10_000_000


def test_members_of_nothing_end_soon() -> None:
    with pytest.raises(RecordError, match="it is not a compressed record"):
        decompressed(memoryview(gzip.compress(b"") * 200_000))


def test_the_bound_without_one() -> None:
    assert (unpack_limit(10, None), unpack_limit(2**30, None), unpack_limit(2**30, 7)) == (2**30, 64 * 2**30, 7)
