"""Compression of whole files: gzip and zstd, reproducible, detected by content, with limited unpacked size."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import sys
from collections.abc import Generator
from typing import IO, Any, Literal, TypeAlias

from phlox.errors import RecordError

Compression: TypeAlias = Literal["gzip", "zstd"]

SUFFIXES: dict[Compression | None, str] = {None: "", "gzip": ".gz", "zstd": ".zst"}
_WINDOW = 18
"""The base-2 logarithm of zstd's window size. A window that fits in the cache together with its tables is faster, and
weights have no repetitions farther apart (measured: 0.7 to 0.9 of the time, and no larger file)."""
_CHUNK = 1 << 20
_BUFFER = 1 << 16
_SLACK = _CHUNK + 4 * _BUFFER
_SAFE_BYTES = 1 << 30
_SAFE_RATIO = 64  # weights hardly compress: by a factor of 1.1 to 4


@contextlib.contextmanager
def compressed(file: IO[bytes], compression: Compression | None) -> Generator[IO[bytes]]:
    """A stream that compresses to `file`. Equal input gives equal bytes: it has no name and no time."""
    if compression is None:
        yield file
    elif compression == "gzip":
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as stream:
            yield stream  # pyright: ignore[reportReturnType] -- a GzipFile writes bytes
    else:
        zstd = _zstd()
        parameter = zstd.CompressionParameter
        options = {parameter.checksum_flag: 1, parameter.window_log: _WINDOW}
        with zstd.ZstdFile(file, "wb", options=options) as stream:
            yield stream


def decompressed(data: memoryview, max_bytes: int | None = None) -> memoryview:
    """Decompress `data` in memory; uncompressed data is returned unchanged.

    Unpacks at most `max_bytes`: by default 64 times the compressed size, or 1 GiB if that is more. More is a
    RecordError.
    """
    compression = compression_of(data)
    if compression is None:
        return data
    limit = unpack_limit(len(data), max_bytes)
    raw = _BytesFile(data)
    # A size that a file claims is not to be trusted. Growing costs little: the system extends it, or remaps its pages.
    result, chunk = bytearray(), memoryview(bytearray(_CHUNK))
    buffered = io.BufferedReader(raw, _BUFFER)
    with gzip.GzipFile(fileobj=buffered) if compression == "gzip" else _zstd().ZstdFile(buffered) as stream:
        while count := stream.readinto(chunk):
            result += chunk[:count]
            raw.unpacked += count
            if raw.unpacked > limit:
                raise RecordError(
                    f"its {len(data)} bytes unpack to more than {limit}, as those of a decompression bomb do; "
                    "if it is to be trusted, give the recorder or `load` a larger max_bytes"
                )
    return memoryview(result).toreadonly()


def unpack_limit(size: int, max_bytes: int | None) -> int:
    """The maximum unpacked size of a file of `size` bytes: `max_bytes`, or the default of `Reader`."""
    return max(_SAFE_BYTES, _SAFE_RATIO * size) if max_bytes is None else max_bytes


def compression_of(data: memoryview) -> Compression | None:
    """The compression of `data`, by its first bytes."""
    head = bytes(data[:9])
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return "zstd"
    # The length of a safetensors header can look like gzip; but then the header's brace follows, unlike in gzip.
    if head[:3] == b"\x1f\x8b\x08" and head[8:] != b"{":
        return "gzip"
    return None


def _zstd() -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError:
        raise RecordError("zstd compression is not installed: install Phlox with the extra 'zstd'") from None


class _BytesFile(io.RawIOBase):
    """A memoryview as a file, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0
        self.unpacked = 0
        """The number of bytes unpacked from it, set by the caller."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._position > 2 * self.unpacked + _SLACK:  # otherwise a file of empty members would take hours
            raise RecordError(f"{self._position} bytes of it unpack to {self.unpacked}: it is not a compressed record")
        chunk = self._data[self._position : self._position + len(buffer)]
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)
