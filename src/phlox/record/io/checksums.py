"""Checksums: a CRC-32 (zlib) for every entry of a record and one for the whole record, the same in every format.

- Plain value: over `[path, value]` as MessagePack, with the value as in JSON (`values.to_json`).
- Tensor: over `[path, id, dtype, shape]` as MessagePack, followed by its raw little-endian elements.
- Whole record: over `[schema, format, precision, phlox, positional, fingerprint, metadata, aliases, paths]` as
  MessagePack, with metadata and aliases sorted by name, and paths in the order of the record.

A file stores them as 4 bytes each, big-endian: first of the entries in order, then of the whole record. JSON text
has these bytes as hexadecimal digits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from phlox.backend.sharding import Index
from phlox.errors import RecordError
from phlox.record.dtypes import SHORT_NAMES, Array, element_bytes
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.io.crc32 import SMALL, crc32, of_parts
from phlox.record.record import Entry, Record
from phlox.record.values import Value, to_json

if TYPE_CHECKING:
    from phlox.record.header import Header
    from phlox.record.io.source import Source

FIRST_SCHEMA = 2
"""Files of earlier schemas have no checksums."""

WIDTH = 4
"""Bytes of one checksum."""

_REMEDY = "the file is damaged or was changed by another program; verify=False reads it all the same"
_pack = msgspec.msgpack.encode


def start_of(path: str, entry: TensorEntry) -> int:
    """The checksum of the description of a tensor, which its elements then continue."""
    return zlib.crc32(_pack([path, entry.id, SHORT_NAMES[entry.tensor.dtype], entry.tensor.shape]))


def packed(record: Record, header: Header, tensors: Mapping[str, int]) -> bytes:
    """The checksums in the file of `record`, from its tensors' checksums by path."""
    sums = [tensors[p] if p in tensors else _of_value(p, record.values[p]) for p in record]
    sums.append(_of_whole(header, record.metadata, record.aliases, record))
    return b"".join([each.to_bytes(WIDTH, "big") for each in sums])


def verified(
    entries: dict[str, Entry],
    header: Header,
    metadata: Mapping[str, str],
    aliases: Mapping[str, str],
    sums: bytes | None,
    source: Source,
) -> Record:
    """The record of these parts, verified by the checksums of its file; tensors are verified on their first read.

    Raises RecordError if a checksum does not match, or if the checksums of the schema are missing.
    """
    if source.verify and sums is None and header.schema >= FIRST_SCHEMA:
        raise RecordError(f"it has lost its checksums: {_REMEDY}")
    if source.verify and sums is not None:
        if len(sums) != WIDTH * (len(entries) + 1):
            raise RecordError(f"it has {len(sums)} bytes of checksums for {len(entries)} entries: {_REMEDY}")
        numbers = [int.from_bytes(sums[at : at + WIDTH], "big") for at in range(0, len(sums), WIDTH)]
        if _of_whole(header, metadata, aliases, entries) != numbers[-1]:
            raise RecordError(f"the checksum of its header, names and metadata does not match: {_REMEDY}")
        for (path, entry), expected in zip(list(entries.items()), numbers, strict=False):
            entries[path] = _checked(path, entry, expected, source.name)
    return Record(entries, metadata, aliases=aliases, positional=header.positional, header=header)


def _checked(path: str, entry: Entry, expected: int, name: str) -> Entry:
    if isinstance(entry, TensorEntry):
        tensor = entry.tensor
        source = _Checked(tensor, start_of(path, entry), expected, f"{name}: {path}")
        return TensorEntry(msgspec.structs.replace(tensor, source=source, part=source.part), entry.id)
    if _of_value(path, entry) != expected:
        raise RecordError(f"{path}: its checksum does not match: {_REMEDY}")
    return entry


class _Checked(msgspec.Struct, eq=False):
    """The source of a tensor, verified when it is first read: at once, or as soon as its parts have all been read."""

    _tensor: LazyTensor
    _start: int
    _expected: int | None
    _where: str
    _pieces: dict[int, tuple[int, int]] = {}
    """Of the parts that were read: the first byte -> the number of bytes and their checksum."""

    def __call__(self) -> Array:
        array = self._tensor.source()
        if self._expected is not None:
            if _crc32_of(array, self._start) != self._expected:
                raise self._damaged()
            self._expected = None
        return array

    def part(self, index: Index) -> Array:
        """One part; a process may read no other one.

        If it is contiguous in the file, it is verified together with its neighbours.
        """
        if self._expected is None:
            return self._read(index)
        span = contiguous(index, self._tensor.shape)
        if span is None:  # it touches most pages of the file all the same
            self()
            return self._read(index)
        array = self._read(index)
        width = self._tensor.dtype.itemsize
        first, length = span[0] * width, (span[1] - span[0]) * width
        if length and self._pieces.get(first, (0, 0))[0] != length:
            self._pieces[first] = length, _crc32_of(np.asarray(array, order="C"), 0 if first else self._start)
            self._compare_pieces(dict(self._pieces))
        return array

    def _read(self, index: Index) -> Array:
        return self._tensor.source()[(*index, ...)] if self._tensor.part is None else self._tensor.part(index)

    def _compare_pieces(self, pieces: dict[int, tuple[int, int]]) -> None:
        if sum([length for length, _ in pieces.values()]) < self._tensor.nbytes:
            return
        end = 0
        for first in sorted(pieces):
            if first != end:  # two overlap: then the whole decides
                self()
                return
            end += pieces[first][0]
        if of_parts(pieces) != self._expected:
            raise self._damaged()
        self._settle()

    def _damaged(self) -> RecordError:
        return RecordError(f"{self._where}: its checksum does not match: {_REMEDY}")

    def _settle(self) -> None:
        self._expected = None
        self._pieces.clear()


def contiguous(index: Index, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The elements of a part, from the first to that after the last, if they are one run in C order; else None.

    >>> contiguous((slice(1, 3), slice(0, 4)), (3, 4)), contiguous((slice(0, 3), slice(0, 2)), (3, 4))
    ((4, 12), None)
    """
    start, count, step, is_open = 0, 1, 1, False
    for each, size in zip(reversed(index), reversed(shape), strict=True):
        length = each.stop - each.start
        if is_open and length > 1:
            return None
        start += each.start * step
        count *= length
        is_open |= length != size
        step *= size
    return (start, start + count) if count else (0, 0)


def _crc32_of(array: Array, start: int) -> int:
    data = element_bytes(array)
    return zlib.crc32(data, start) if len(data) < SMALL else crc32(data, start)


def _of_value(path: str, value: Value) -> int:
    return crc32(_pack([path, to_json(value)]))


def _of_whole(header: Header, metadata: Mapping[str, str], aliases: Mapping[str, str], paths: Iterable[str]) -> int:
    fields = [header.schema, header.format, header.precision, header.phlox, header.positional, header.fingerprint]
    return zlib.crc32(_pack([*fields, dict(sorted(metadata.items())), dict(sorted(aliases.items())), list(paths)]))
