"""Byte ranges of the files of a folder, on this machine or a remote file system: the source of records in parts."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import Protocol, final

import numpy as np

from phlox.backend.sharding import Index
from phlox.errors import RecordError
from phlox.record.dtypes import Array
from phlox.record.io.files import map_file


class Files(Protocol):
    """The files of a folder, read by ranges."""

    @property
    def name(self) -> str:
        """The folder, for messages."""
        ...

    @property
    def is_mapped(self) -> bool:
        """Does `read` give the same memory each time, without a copy?"""
        ...

    def sizes(self) -> dict[str, int]:
        """The size in bytes of every file there, by name."""
        ...

    def read(self, name: str, start: int, stop: int) -> Array:
        """The bytes of a range, read-only. RecordError, naming the file, if they cannot be read."""
        ...


@final
class MappedFiles:
    """The files of a local folder, each mapped into memory when it is first read."""

    is_mapped = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)
        self._maps: dict[str, Array] = {}
        self._lock = Lock()

    def sizes(self) -> dict[str, int]:
        """See `Files.sizes`."""
        with os.scandir(self.folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def read(self, name: str, start: int, stop: int) -> Array:
        """See `Files.read`; a view of the mapped file."""
        data = self._maps.get(name)
        if data is None:
            data = self._mapped(name)
        if stop > len(data):
            raise RecordError(f"{self.folder / name}: it ends at byte {len(data)}, where {stop} were expected")
        return data[start:stop]

    def _mapped(self, name: str) -> Array:
        path = self.folder / name
        with self._lock:
            if name not in self._maps:
                try:
                    self._maps[name] = np.frombuffer(map_file(path), np.uint8)
                except OSError as error:
                    raise RecordError(f"{path}: it cannot be read: {error.strerror or error}") from error
                except RecordError as error:
                    raise RecordError(f"{path}: {error}") from None
            return self._maps[name]


def spans(index: Index, shape: tuple[int, ...], width: int, gap: int) -> list[tuple[int, int]]:
    """The byte ranges that a part with elements takes of an array in C order; gaps shorter than `gap` are included.

    Args:
        index: the part.
        shape: of the array.
        width: the bytes of an element.
        gap: in bytes; at least 1.

    >>> spans((slice(1, 3), slice(0, 2)), (3, 4), 1, gap=1), spans((slice(1, 3), slice(0, 2)), (3, 4), 1, gap=3)
    ([(4, 6), (8, 10)], [(4, 10)])
    """
    first, extent, step = 0, width, width
    starts = [0]
    for each, size in zip(reversed(index), reversed(shape), strict=True):
        count = each.stop - each.start
        first += each.start * step
        if count > 1 and len(starts) == 1 and step - extent < gap:
            extent += (count - 1) * step
        elif count > 1:
            starts = [row * step + start for row in range(count) for start in starts]
        step *= size
    return [(first + start, first + start + extent) for start in starts]
