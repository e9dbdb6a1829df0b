"""Tensors that lie in parts, in several files: one array is made of the parts that a reader asks for."""

from __future__ import annotations

import math
import sys

import msgspec
import numpy as np

from phlox.backend.sharding import Index
from phlox.errors import RecordError
from phlox.host.thread_pool import parallel_for, parallel_map
from phlox.record.dtypes import Array, DType
from phlox.record.io.byte_ranges import Files, spans
from phlox.record.io.crc32 import crc32

_SHARE = 1 << 22
"""The least bytes to copy or to verify for which a thread is used."""
_DAMAGED = "its checksum does not match: the file is damaged or was changed by another program; verify=False reads it"


class Part(msgspec.Struct, frozen=True, gc=False):
    """The location of a part of a tensor, as in the index of a folder."""

    index: Index
    file: str
    offset: int
    """The offset of its first byte in the file."""
    checksums: tuple[int, ...]
    """The CRC-32 of each block of its bytes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple([s.stop - s.start for s in self.index])


class Assembled(msgspec.Struct, frozen=True, eq=False):
    """The source of a tensor in parts. If one part has all requested elements, they are a view of the mapped file."""

    files: Files
    path: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    block: int
    """The number of bytes that share a checksum: at least so many are read, for verification."""
    verified: set[tuple[int, int]] | None
    """The blocks whose checksums have been compared, as (part, block); None to compare none."""

    def __call__(self) -> Array:
        return self.part(tuple([slice(0, size) for size in self.shape]))

    def part(self, index: Index) -> Array:
        """The elements of a part of the tensor, from all files that have some of them."""
        shape = tuple([s.stop - s.start for s in index])
        if not math.prod(shape):
            return np.empty(shape, self.dtype)
        pieces: list[tuple[int, Index]] = []
        for number, part in enumerate(self.parts):
            shared = overlap(part.index, index)
            if shared is not None and shared == index:
                return self._native(self._read(number, within(shared, part.index)))
            if shared is not None:
                pieces.append((number, shared))
        whole = np.empty(shape, self.dtype)

        def copy(i: int) -> None:
            number, shared = pieces[i]
            whole[within(shared, index)] = self._read(number, within(shared, self.parts[number].index))

        sizes = [math.prod([s.stop - s.start for s in shared]) * self.dtype.itemsize for _, shared in pieces]
        parallel_map(copy, sizes, _SHARE)
        native = self._native(whole)
        native.flags.writeable = False  # like an array over a mapped file: a loader can keep it without a copy
        return native

    def _read(self, number: int, index: Index) -> Array:
        """Elements within a part, in the byte order of the file."""
        part = self.parts[number]
        shape, width = part.shape, self.dtype.itemsize
        ranges = spans(index, shape, width, self.block)
        if len(ranges) > 1:  # the outermost axis has gaps: then one slice of it after the other
            axis = next(axis for axis, s in enumerate(index) if s.stop - s.start > 1)
            rows = range(index[axis].start, index[axis].stop)
            slices = [(*index[:axis], slice(row, row + 1), *index[axis + 1 :]) for row in rows]
            return np.concatenate([self._read(number, s) for s in slices], axis=axis)
        first, last = ranges[0]
        if self.verified is not None:  # whole blocks, as far as the part goes
            start = first // self.block * self.block
            stop = min(math.prod(shape) * width, -(-last // self.block) * self.block)
        else:
            start, stop = first, last
        data = self.files.read(part.file, part.offset + start, part.offset + stop)
        if self.verified is not None:
            self._verify(number, data, start // self.block, self.verified)
        strides = [width * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return np.ndarray([s.stop - s.start for s in index], self.dtype, data, first - start, strides)

    def _verify(self, number: int, data: Array, first: int, verified: set[tuple[int, int]]) -> None:
        expected = self.parts[number].checksums

        def work(start: int, stop: int) -> None:
            for block in range(first + start, first + stop):
                if (number, block) in verified:
                    continue
                at = (block - first) * self.block
                if crc32(data[at : at + self.block].data) != expected[block]:
                    raise RecordError(f"{self.files.name}: {self.path}: {self.parts[number].file}: {_DAMAGED}")
                if self.files.is_mapped:
                    verified.add((number, block))

        parallel_for(work, -(-len(data) // self.block), max(1, _SHARE // self.block))

    def _native(self, array: Array) -> Array:
        if self.dtype.kind == "b" and array.size and np.ascontiguousarray(array).view(np.uint8).max() > 1:
            raise RecordError(f"{self.files.name}: {self.path}: it holds bytes other than 0 and 1 as booleans")
        if sys.byteorder != "little":
            array = array.byteswap()
        return array if array.flags.aligned else array.copy()


def overlap(first: Index, second: Index) -> Index | None:
    """The intersection of two parts of one tensor; None if it is empty.

    >>> overlap((slice(0, 4), slice(0, 2)), (slice(3, 6), slice(1, 2)))
    (slice(3, 4, None), slice(1, 2, None))
    """
    shared: list[slice] = []
    for a, b in zip(first, second, strict=True):
        start, stop = max(a.start, b.start), min(a.stop, b.stop)
        if start >= stop:
            return None
        shared.append(slice(start, stop))
    return tuple(shared)


def within(index: Index, part: Index) -> Index:
    """A part of a tensor, relative to another part that contains it.

    >>> within((slice(3, 4),), (slice(2, 6),))
    (slice(1, 2, None),)
    """
    return tuple([slice(a.start - b.start, a.stop - b.start) for a, b in zip(index, part, strict=True)])


def gap_in(indexes: list[Index], shape: tuple[int, ...]) -> str | None:
    """Why parts do not make up a tensor, each element once; None if they do.

    >>> gap_in([(slice(0, 2),), (slice(1, 3),)], (3,))
    '[0:2] and [1:3] overlap'
    """
    for index in indexes:
        for s, size in zip(index, shape, strict=True):
            if not 0 <= s.start < s.stop <= size:
                return f"{text_of(index)} is not within its shape {shape}"
    if _is_grid(indexes, shape):
        return None
    ends = np.array([[[s.start for s in index], [s.stop for s in index]] for index in indexes], np.int64)
    ends = ends.reshape(len(indexes), 2, len(shape))
    for number in range(len(indexes)):
        later = ends[number + 1 :]
        overlaps = (later[:, 0] < ends[number, 1]).all(axis=1) & (ends[number, 0] < later[:, 1]).all(axis=1)
        if overlaps.any():
            return f"{text_of(indexes[number])} and {text_of(indexes[number + 1 + int(overlaps.argmax())])} overlap"
    elements = sum([math.prod([s.stop - s.start for s in index]) for index in indexes])
    if elements != math.prod(shape):
        return f"{len(indexes)} parts have {elements} of its {math.prod(shape)} elements"
    return None


def _is_grid(indexes: list[Index], shape: tuple[int, ...]) -> bool:
    """Is each axis divided into consecutive intervals, with one part for each combination of them?

    Meshes divide a tensor in this way. This test is much faster than comparing each part with each.
    """
    parts = {tuple([(s.start, s.stop) for s in index]) for index in indexes}
    count = 1 if indexes else 0
    for axis, size in enumerate(shape):
        intervals = sorted({part[axis] for part in parts})
        if [0, *[stop for _, stop in intervals]] != [*[start for start, _ in intervals], size]:
            return False
        count *= len(intervals)
    return count == len(parts) == len(indexes)


def text_of(index: Index) -> str:
    """A part as it is written in messages and, without the brackets, in names of tensors."""
    return "[" + ",".join([f"{s.start}:{s.stop}" for s in index]) + "]"
