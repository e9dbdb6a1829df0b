"""`Source`: the input of a format: the bytes of a file, decompressed, and memory-mapped if possible."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from phlox.backend.out_of_memory import out_of_memory
from phlox.backend.sharding import Index
from phlox.errors import PhloxError, RecordError
from phlox.record.dtypes import Array, DType, checked_shape
from phlox.record.entry import LazyTensor
from phlox.record.io.compression import decompressed
from phlox.record.io.files import map_file


@dataclass(frozen=True, eq=False)
class Source:
    """The input of a format: the whole decompressed file as a read-only buffer; lazy tensors are views of it."""

    data: memoryview
    name: str
    """The name of the file, for error messages."""
    folder: Path | None = None
    """The folder of the file, for formats with several files; None in memory."""
    verify: bool = True
    """Whether checksums are verified."""

    @cached_property
    def array(self) -> Array:
        """All of its bytes."""
        return np.frombuffer(self.data, np.uint8)

    def tensor(self, path: str, dtype: DType, shape: object, start: int, stop: int) -> LazyTensor:
        """The tensor whose raw little-endian elements are the bytes `start` to `stop`.

        Raises RecordError unless the shape needs exactly that many bytes and all are in the file.
        """
        sizes = checked_shape(shape, dtype, path)
        needed = math.prod(sizes) * dtype.itemsize
        if not 0 <= start <= stop <= len(self.data) or stop - start != needed:
            raise RecordError(
                f"{path}: {dtype} of shape {sizes} takes {needed} bytes; "
                f"the file gives bytes {start} to {stop} of {len(self.data)}"
            )
        elements = _Elements(self, path, dtype, sizes, start)
        return LazyTensor(sizes, dtype, dtype, elements, path, part=elements)

    def lazy(self, path: str, dtype: DType, shape: object, flat: Callable[[], Array]) -> LazyTensor:
        """The tensor whose flat elements `flat()` returns; its errors name the file and `path`."""
        sizes = checked_shape(shape, dtype, path)

        def read() -> Array:
            try:
                return flat().reshape(sizes)
            except Exception as error:
                raise self.error(path, error) from error

        return LazyTensor(sizes, dtype, dtype, read, path)

    def error(self, path: str, error: Exception) -> PhloxError:
        """The error of the tensor at `path`, with the name of the file."""
        where = f"{self.name}: {path}"
        return out_of_memory(where, None, error) or RecordError(f"{where}: {reason(error)}")


_LITTLE = sys.byteorder == "little"


class _Elements(msgspec.Struct, frozen=True, eq=False):
    """The array of a byte range: one small object per tensor, since a file can have thousands."""

    source: Source
    path: str
    dtype: DType
    shape: tuple[int, ...]
    start: int

    def __call__(self, index: Index = ()) -> Array:
        """The array, or a part of it: a view of the file if it is contiguous in it."""
        try:
            # A view of the array, not of the memoryview: the latter's base could be made writable.
            array = np.ndarray(self.shape, self.dtype, self.source.array, self.start)[(*index, ...)]
            as_stored = _LITTLE and array.flags.aligned and self.dtype.kind != "b"
            return array if as_stored else _as_elements(array)
        except Exception as error:
            raise self.source.error(self.path, error) from error


def open_source(path: Path, max_bytes: int | None = None, verify: bool = True) -> Source:
    """The (decompressed) content of a file; RecordError, with its name, if it cannot be read."""
    try:
        data = map_file(path)
    except OSError as error:
        raise RecordError(f"{path}: it cannot be read: {error.strerror or error}") from error
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    return unpacked(data, str(path), max_bytes, path.parent, verify)


def read_source(content: Any, name: str, max_bytes: int | None = None, verify: bool = True) -> Source:
    """Bytes in memory, or an open binary file from its position, as a source with `name` (or the file's name).

    Raises RecordError for other objects, and if the file cannot be read.
    """
    if isinstance(content, (bytes, bytearray, memoryview, mmap.mmap)):
        data = cast("memoryview", content)
    else:
        read = getattr(content, "read", None)
        if not callable(read):
            raise RecordError(f"expected a path, an open binary file or bytes, not {type(content).__name__}")
        own = getattr(content, "name", None)
        name = own if isinstance(own, str) and own else name
        try:
            data = cast("memoryview", read())
        except (OSError, ValueError) as error:  # includes UnsupportedOperation and a closed file
            raise RecordError(f"{name}: it cannot be read: {error}") from error
        if not isinstance(data, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RecordError(
                f"{name}: reading it gives {type(data).__name__}; open it in binary mode, as open(path, 'rb')"
            )
    return unpacked(memoryview(data).toreadonly().cast("B"), name, max_bytes, verify=verify)


def unpacked(
    data: memoryview, name: str, max_bytes: int | None = None, folder: Path | None = None, verify: bool = True
) -> Source:
    """Decompress `data` if it is compressed; RecordError with `name` if that fails."""
    try:
        return Source(decompressed(data, max_bytes), name, folder, verify)
    except RecordError as error:
        raise RecordError(f"{name}: {error}") from None
    except Exception as error:
        no_memory = out_of_memory(name, None, error)
        if no_memory is not None:
            raise no_memory from error
        raise RecordError(f"{name}: damaged compressed data: {reason(error)}") from error


def elements(data: memoryview, dtype: DType) -> Array:
    """Little-endian bytes as a flat array, a view if they are aligned. RecordError for invalid booleans."""
    return _as_elements(np.frombuffer(data, dtype))


def _as_elements(array: Array) -> Array:
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise RecordError("it holds bytes other than 0 and 1 as booleans")
    if not _LITTLE:
        return array.byteswap()
    return array if array.flags.aligned else array.copy()


def reason(error: Exception) -> str:
    """The message of an error, for use in another message."""
    if isinstance(error, RecursionError):
        return "it nests too deep"
    return str(error) if isinstance(error, RecordError) else f"{error or type(error).__name__}"
