"""The compact binary format: the smallest files, with a table of names or, on request, without names.

A file is `MAGIC`, the length of the header (4 bytes, little-endian), the header (`_FileHeader` as a MessagePack array),
zeros up to a multiple of 8, the raw little-endian tensors without gaps, and the checksums. Tensors with wider elements
come first, otherwise they are in the order of the record; so each is aligned and no offsets are stored.

The names are one table: for each path the number of bytes it shares with the previous path (1 byte), the length of the
rest (LEB128), and the rest (UTF-8). A file without names has the fingerprint of the omitted names.
"""

from __future__ import annotations

import math
from typing import Any, final

import msgspec

from phlox.errors import RecordError
from phlox.record.dtypes import DTYPES, DType, checked_shape
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.recorder import Recorder
from phlox.record.header import Header
from phlox.record.io.checksums import FIRST_SCHEMA, WIDTH, packed, start_of, verified
from phlox.record.io.compression import Compression
from phlox.record.io.sink import Sink
from phlox.record.io.source import Source
from phlox.record.limits import check_entries, check_message_pack, check_size
from phlox.record.names import fingerprint_of
from phlox.record.precision import FULL, PrecisionLike
from phlox.record.record import Entry, Record

MAGIC = b"\x89PHX"
_MAX_SHARED = 255  # one byte; it also limits the unpacked size of a hostile table
_TYPES: tuple[DType | None, ...] = (None, *DTYPES.values())  # by code; 0 is a plain value
_CODES = {dtype: code for code, dtype in enumerate(_TYPES)}


class _FileHeader(msgspec.Struct, array_like=True):
    schema: int
    phlox: str
    precision: str
    metadata: dict[str, str]
    aliases: dict[str, str]
    codes: bytes
    """For each entry the code of its dtype, 0 for a plain value."""
    shapes: list[list[int]]
    values: list[Any]
    names: bytes | None
    ids: list[str | None] | None
    fingerprint: bytes | None = None


@final
class BinaryRecorder(Recorder):
    """The compact binary format, mapped when loaded.

    Args:
        precision, compression, max_bytes, verify: see `Recorder`.
        names: whether paths, ids and aliases are written. A file without names loads as a *positional* record, with the
            paths "0", "1", ..., which a module matches in order.

    >>> import numpy as np
    >>> recorder = BinaryRecorder(names=False)
    >>> record = recorder.from_bytes(recorder.to_bytes(Record({"weight": np.ones(3), "bias": np.ones(1)})))
    >>> record.positional, record.paths()
    (True, ['0', '1'])
    """

    format = "binary"
    suffix = ".phlox"
    is_raw = True

    def __init__(
        self,
        precision: PrecisionLike = FULL,
        compression: Compression | None = None,
        *,
        names: bool = True,
        durable: bool = True,
        max_bytes: int | None = None,
        verify: bool = True,
    ) -> None:
        super().__init__(precision, compression, durable=durable, max_bytes=max_bytes, verify=verify)
        self.names = names

    def write(self, record: Record, sink: Sink) -> None:
        """See `Recorder.write`."""
        named = self.names and not record.positional
        if not named:
            record = _without_names(record, self.format)
        header = self.header(record)
        ids = [entry.id for entry in record.tensors.values()]
        layout = _FileHeader(
            schema=header.schema,
            phlox=header.phlox,
            precision=header.precision,
            metadata=dict(record.metadata),
            aliases=dict(record.aliases),
            codes=bytes(_CODES[record.tensors[p].tensor.dtype] if p in record.tensors else 0 for p in record),
            shapes=[list(entry.tensor.shape) for entry in record.tensors.values()],
            values=list(record.values.values()),
            names=_front_coded(record.paths()) if named else None,
            ids=ids if any(id is not None for id in ids) else None,
            fingerprint=None if header.fingerprint is None else bytes.fromhex(header.fingerprint),
        )
        text = msgspec.msgpack.encode(layout)
        check_message_pack(text)
        sink.write(MAGIC + len(text).to_bytes(4, "little") + text + bytes(-len(text) % 8))
        tensors = sorted(record.tensors.items(), key=lambda item: -item[1].tensor.dtype.itemsize)
        sums = sink.tensors((entry.tensor, start_of(path, entry)) for path, entry in tensors)
        sink.write(packed(record, header, dict(zip((path for path, _ in tensors), sums, strict=True))))

    def read(self, source: Source) -> Record:
        """See `Recorder.read`."""
        data = source.data
        if bytes(data[:4]) != MAGIC:
            raise RecordError("it does not begin as one")
        length = int.from_bytes(data[4:8], "little")
        start = 8 + length + -length % 8
        if len(data) < 8 or start > len(data):
            raise RecordError(f"it has {len(data)} bytes, fewer than its header takes; truncated?")
        check_size(length)
        if any(data[8 + length : start]):
            raise RecordError("the padding after its header is not zero")
        check_message_pack(data[8 : 8 + length])
        layout = msgspec.msgpack.decode(data[8 : 8 + length], type=_FileHeader)
        header = Header(
            schema=layout.schema,
            format=self.format,
            precision=layout.precision,
            phlox=layout.phlox,
            positional=layout.names is None,
            fingerprint=None if layout.fingerprint is None else layout.fingerprint.hex(),
        )
        header.check(self.format)
        count = len(layout.codes)
        check_entries(count)
        paths = [str(i) for i in range(count)] if layout.names is None else _paths(layout.names, count)
        if len(set(paths)) != count:
            raise RecordError("it has two entries of one name")
        if layout.codes.count(0) != len(layout.values):
            raise RecordError(f"it has {layout.codes.count(0)} entries for {len(layout.values)} values")
        values = iter(layout.values)
        tensor_paths = [path for path, code in zip(paths, layout.codes, strict=True) if code]
        end = len(data) - (WIDTH * (count + 1) if header.schema >= FIRST_SCHEMA else 0)
        tensors = iter(_tensors(tensor_paths, layout, source, start, end))
        entries: dict[str, Entry] = {
            path: next(tensors) if code else next(values) for path, code in zip(paths, layout.codes, strict=True)
        }
        sums = bytes(data[end:]) if header.schema >= FIRST_SCHEMA else None
        return verified(entries, header, layout.metadata, layout.aliases, sums, source)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Recorder.recognises`."""
        return head.startswith(MAGIC)


def _without_names(record: Record, format: str) -> Record:
    fingerprint = record.fingerprint if record.positional else fingerprint_of(record)
    header = msgspec.structs.replace(Header.of(record, format, ""), positional=True, fingerprint=fingerprint)
    entries = (TensorEntry(entry.tensor) if isinstance(entry := record[p], TensorEntry) else entry for p in record)
    return Record({str(i): entry for i, entry in enumerate(entries)}, record.metadata, positional=True, header=header)


def _tensors(paths: list[str], layout: _FileHeader, source: Source, start: int, end: int) -> list[TensorEntry]:
    if max(layout.codes, default=0) >= len(_TYPES):
        raise RecordError(f"{max(layout.codes)} is the code of no element type")
    dtypes = [dtype for code in layout.codes if (dtype := _TYPES[code]) is not None]
    ids = [None] * len(paths) if layout.ids is None else layout.ids
    if not len(paths) == len(layout.shapes) == len(ids):
        raise RecordError(f"it has {len(paths)} tensors, {len(layout.shapes)} shapes and {len(ids)} ids")
    tensors: dict[int, LazyTensor] = {}
    for i in sorted(range(len(paths)), key=lambda i: -dtypes[i].itemsize):
        shape = checked_shape(layout.shapes[i], dtypes[i], paths[i])
        size = math.prod(shape) * dtypes[i].itemsize
        tensors[i] = source.tensor(paths[i], dtypes[i], shape, start, start + size)
        start += size
    if start != end:
        raise RecordError(f"its tensors end at byte {start}, not at {end} as its size of {len(source.data)} says")
    return [TensorEntry(tensors[i], ids[i]) for i in range(len(paths))]


def _front_coded(paths: list[str]) -> bytes:
    table, previous = bytearray(), b""
    for path in paths:
        name = path.encode()
        limit = min(len(name), len(previous), _MAX_SHARED)
        shared = next((i for i in range(limit) if name[i] != previous[i]), limit)
        table.append(shared)
        remaining = len(name) - shared
        while remaining > 127:
            table.append(remaining & 127 | 128)
            remaining >>= 7
        table.append(remaining)
        table += name[shared:]
        previous = name
    return bytes(table)


def _paths(table: bytes, count: int) -> list[str]:
    paths: list[str] = []
    previous, at = b"", 0
    for _ in range(count):
        shared, at = table[at], at + 1
        length = shift = 0
        while True:
            byte, at = table[at], at + 1
            length |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 35:
                raise RecordError("its table of names is damaged")
        if shared > len(previous) or at + length > len(table):
            raise RecordError("its table of names is damaged")
        previous, at = previous[:shared] + table[at : at + length], at + length
        paths.append(previous.decode())
    if at != len(table):
        raise RecordError("its table of names has more names than entries")
    return paths
