"""`Recorder`: what every format shares (files, memory, compression, precision, errors), so that a format is short."""

from __future__ import annotations

import io
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, TypeAlias

import numpy as np

from phlox.errors import RecordError
from phlox.record.compression import SUFFIXES, Compression, compressed, decompressed
from phlox.record.dtypes import Array, DType, checked_shape
from phlox.record.entry import LazyTensor
from phlox.record.files import atomic_write, find_file, map_file
from phlox.record.header import Header
from phlox.record.precision import FULL, Precision, precision_label
from phlox.record.record import Record

PathLike: TypeAlias = "str | os.PathLike[str]"


class Sink:
    """Where a format writes: bytes, and tensors as raw little-endian elements, a piece at a time."""

    __slots__ = ("_stream", "position")

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.position = 0
        """The number of bytes written so far."""

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        self._stream.write(data)
        self.position += len(data)

    def tensor(self, tensor: LazyTensor) -> None:
        """Writes the elements of `tensor` in order; reads it now, casts it a small block at a time."""
        for block in tensor.blocks():
            self.write(element_bytes(block))


@dataclass(frozen=True, eq=False, slots=True)
class Source:
    """What a format reads: the whole (unpacked) file as one read-only buffer, of which lazy tensors are views."""

    data: memoryview
    name: str
    """Of the file, for errors."""

    def tensor(self, path: str, dtype: DType, shape: object, start: int, stop: int) -> LazyTensor:
        """The tensor whose raw little-endian elements are the bytes `start` to `stop`.

        Raises RecordError unless these are exactly as many bytes as the shape needs and all are in the file.
        """
        sizes = checked_shape(shape, dtype, path)
        needed = math.prod(sizes) * dtype.itemsize
        if not 0 <= start <= stop <= len(self.data) or stop - start != needed:
            raise RecordError(
                f"{path}: {dtype} of shape {sizes} takes {needed} bytes; "
                f"the file gives bytes {start} to {stop} of {len(self.data)}"
            )
        return self.lazy(path, dtype, sizes, lambda: elements(self.data[start:stop], dtype))

    def lazy(self, path: str, dtype: DType, shape: object, flat: Callable[[], Array]) -> LazyTensor:
        """The tensor whose flat elements the function `flat` gives; what fails in it names the file and `path`."""
        sizes = checked_shape(shape, dtype, path)

        def read() -> Array:
            try:
                return flat().reshape(sizes)
            except Exception as error:
                raise RecordError(f"{self.name}: {path}: {_reason(error)}") from error

        return LazyTensor.from_function(sizes, dtype, read, path)


class Recorder(ABC):
    """Writes records to files or bytes in one format, and reads them back. A format of your own is one short class:

    >>> import numpy as np
    >>> class NpyRecorder(Recorder):  # the tensor "data", and nothing else
    ...     format, suffix = "npy", ".npy"
    ...     def write(self, record, sink):
    ...         buffer = io.BytesIO()
    ...         np.save(buffer, record["data"].tensor.read())
    ...         sink.write(buffer.getvalue())
    ...     def read(self, source):
    ...         return Record({"data": np.load(io.BytesIO(source.data), allow_pickle=False)})
    >>> recorder = NpyRecorder(compression="gzip")
    >>> recorder.from_bytes(recorder.to_bytes(Record({"data": np.arange(3)})))["data"].tensor.read()
    array([0, 1, 2])

    Args:
        precision: at which element types tensors are written (`FULL`: floats as float32). Files are read as they are.
        compression: None, "gzip" or "zstd" (RecordError at use unless `phlox[zstd]` is installed), for writing;
            reading recognises it.
        max_bytes: the most that a compressed file may unpack to; by default 64 times its size, or 1 GiB if that is
            more.
    """

    format: ClassVar[str]
    """The name of the format."""
    suffix: ClassVar[str]
    """The end of its files' names, with the dot."""

    def __init__(
        self, precision: Precision = FULL, compression: Compression | None = None, *, max_bytes: int | None = None
    ) -> None:
        if compression not in SUFFIXES:
            raise RecordError(f'compression={compression!r}: expected None, "gzip" or "zstd"')
        self.precision = precision
        self.compression: Compression | None = compression
        self.max_bytes = max_bytes

    @abstractmethod
    def write(self, record: Record, sink: Sink) -> None:
        """Writes `record`, whose tensors are at the right precision already, reading one tensor at a time."""

    @abstractmethod
    def read(self, source: Source) -> Record:
        """The record in `source`, its tensors lazy where the format allows.

        Whatever is wrong may be raised as any exception: the base class makes it a RecordError that names the file.
        """

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """Whether a file that begins with these bytes (64, or all) is one of this format."""
        return False

    def save(self, record: Record, path: PathLike) -> Path:
        """Writes `record` to `path`, adding the format's suffix where it lacks, and gives the path of the file.

        The file appears whole and durably, or not at all: a crash leaves the old one. Extra memory: one tensor.
        Raises RecordError for a value that does not fit the precision, and where the file cannot be written.
        """
        target = self._target(Path(path))
        try:
            with atomic_write(target) as file:
                self._encode(record, file)
        except RecordError as error:
            raise RecordError(f"cannot save {target}: {error}") from error
        except OSError as error:
            raise RecordError(f"cannot save {target}: {error.strerror or error}") from error
        return target

    def load(self, path: PathLike) -> Record:
        """The record in the file at `path`, given with or without its suffix, of any compression.

        A file that is not compressed is mapped, not read. Raises RecordError, naming file and reason, for a file that
        is missing, damaged, of another format or of a newer schema.
        """
        return self.decode(open_source(find_file(self._candidates(Path(path))), self.max_bytes))

    def to_bytes(self, record: Record) -> bytes:
        """What `save` writes, in memory."""
        buffer = io.BytesIO()
        self._encode(record, buffer)
        return buffer.getvalue()

    def from_bytes(self, data: bytes | bytearray | memoryview) -> Record:
        """The record in `data`, as `load` gives it; its tensors are views of `data`, which must not change."""
        return self.decode(unpacked(memoryview(data).toreadonly().cast("B"), f"{self.format} bytes", self.max_bytes))

    def decode(self, source: Source) -> Record:
        """`read`, every failure made a RecordError that names the file."""
        try:
            return self.read(source)
        except Exception as error:
            raise RecordError(f"{source.name}: not a valid {self.format} record: {_reason(error)}") from error

    def header(self, record: Record) -> Header:
        """The header that a file of this recorder carries."""
        return Header.of(record, self.format, precision_label(self.precision))

    def _encode(self, record: Record, file: IO[bytes]) -> None:
        with compressed(file, self.compression) as stream:
            self.write(record.with_precision(self.precision), Sink(stream))

    def _target(self, path: Path) -> Path:
        ending = self.suffix + SUFFIXES[self.compression]
        if path.name.endswith(ending):
            return path
        if self.compression is not None and path.name.endswith(self.suffix):
            return path.with_name(path.name + SUFFIXES[self.compression])
        for other in self._endings():
            if other != self.suffix and path.name.endswith(other):
                raise RecordError(f"cannot save {path}: the recorder's compression is {self.compression}, not {other}")
        if not path.name or "\0" in path.name:
            raise RecordError(f"cannot save {str(path)!r}: it names no file")
        return path.with_name(path.name + ending)

    def _endings(self) -> list[str]:
        preferred = SUFFIXES[self.compression]
        return [self.suffix + end for end in sorted(SUFFIXES.values(), key=lambda end: end != preferred)]

    def _candidates(self, path: Path) -> list[Path]:
        if not path.name or path.name.endswith(tuple(self._endings())):
            return [path]
        first, *others = (path.with_name(path.name + ending) for ending in self._endings())
        return [first, path, *others]


def open_source(path: Path, max_bytes: int | None = None) -> Source:
    """The (unpacked) content of a file; RecordError naming it where it cannot be had."""
    try:
        data = map_file(path)
    except OSError as error:
        raise RecordError(f"{path}: it cannot be read: {error.strerror or error}") from error
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    return unpacked(data, str(path), max_bytes)


def unpacked(data: memoryview, name: str, max_bytes: int | None = None) -> Source:
    """`data`, decompressed where it is compressed; RecordError naming it where that fails."""
    try:
        return Source(decompressed(data, max_bytes), name)
    except RecordError as error:
        raise RecordError(f"{name}: {error}") from None
    except Exception as error:
        raise RecordError(f"{name}: damaged compressed data: {_reason(error)}") from error


def element_bytes(array: Array) -> memoryview:
    """The elements of a contiguous array as little-endian bytes; a view, where the machine is little-endian."""
    flat = array.reshape(-1)
    return (flat if sys.byteorder == "little" else flat.byteswap()).view(np.uint8).data


def elements(data: memoryview, dtype: DType) -> Array:
    """Little-endian bytes as a flat array: a view of them where they are aligned. RecordError for false booleans."""
    raw = np.frombuffer(data, np.uint8)
    if dtype.kind == "b" and raw.size and raw.max() > 1:
        raise RecordError("it holds bytes other than 0 and 1 as booleans")
    array = raw.view(dtype)
    if sys.byteorder != "little":
        return array.byteswap()
    return array if array.flags.aligned else array.copy()


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deep"
    return str(error) if isinstance(error, RecordError) else f"{error or type(error).__name__}"
