"""Checksums: a CRC-32 (zlib) for every entry of a record and one for the whole record, the same in every format.

- Plain value: over `[path, value]` as MessagePack, with the value as in JSON (`values.to_json`).
- Tensor: over `[path, id, dtype, shape]` as MessagePack, followed by its raw little-endian elements.
- Whole record: over `[schema, format, precision, phlox, positional, fingerprint, metadata, aliases, paths]` as
  MessagePack, with metadata and aliases sorted by name, and paths in the order of the record.

A file stores them as 4 bytes each, big-endian: those of the entries in order, then that of the whole record. JSON text
has these bytes as hexadecimal digits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from phlox.errors import RecordError
from phlox.record.dtypes import SHORT_NAMES, Array, element_bytes
from phlox.record.entry import TensorEntry
from phlox.record.io.crc32 import SMALL, crc32
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
    """The checksums in the file of `record`, from those of its tensors by path."""
    sums = [tensors[p] if p in tensors else _of_value(p, record.values[p]) for p in record]
    sums.append(_of_whole(header, record.metadata, record.aliases, record))
    return b"".join(each.to_bytes(WIDTH, "big") for each in sums)


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
        source = _Checked(entry.tensor.source, start_of(path, entry), expected, f"{name}: {path}")
        tensor = entry.tensor
        return TensorEntry(msgspec.structs.replace(tensor, source=source), entry.id)
    if _of_value(path, entry) != expected:
        raise RecordError(f"{path}: its checksum does not match: {_REMEDY}")
    return entry


class _Checked(msgspec.Struct, eq=False):
    """The source of a tensor, verified on its first call."""

    _source: Callable[[], Array]
    _start: int
    _expected: int | None
    _where: str

    def __call__(self) -> Array:
        array = self._source()
        if self._expected is not None:
            if _crc32_of(array, self._start) != self._expected:
                raise RecordError(f"{self._where}: its checksum does not match: {_REMEDY}")
            self._expected = None
        return array


def _crc32_of(array: Array, start: int) -> int:
    data = element_bytes(array)
    return zlib.crc32(data, start) if len(data) < SMALL else crc32(data, start)


def _of_value(path: str, value: Value) -> int:
    return crc32(_pack([path, to_json(value)]))


def _of_whole(header: Header, metadata: Mapping[str, str], aliases: Mapping[str, str], paths: Iterable[str]) -> int:
    fields = [header.schema, header.format, header.precision, header.phlox, header.positional, header.fingerprint]
    return zlib.crc32(_pack([*fields, dict(sorted(metadata.items())), dict(sorted(aliases.items())), list(paths)]))
