"""Named MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md).

A file is a map: "phlox" -> the header, "metadata" and "aliases" -> text by name, "entries" -> an array of maps in the
order of the record, "crc32" -> the checksums as `bin`. A plain value is `{"path", "value"}`. A tensor is `{"path",
"dtype", "shape", "id"?, "pad", "data"}`, where "data" is an array of `bin`, the raw little-endian elements in pieces of
at most 1 GiB (a `bin` ends at 4 GiB), and "pad" is a `bin` of as many zero bytes as make the first piece begin at a
multiple of 8, so that it can be memory-mapped.
"""

from __future__ import annotations

from typing import final

import msgspec
import numpy as np

from phlox.errors import RecordError
from phlox.record.dtypes import Array, DType
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.recorder import Recorder
from phlox.record.header import Document, Item, entries_of, fields_of
from phlox.record.io.checksums import packed, start_of, verified
from phlox.record.io.crc32 import crc32
from phlox.record.io.sink import Sink
from phlox.record.io.source import Source, elements
from phlox.record.limits import check_entries, check_message_pack, length_of
from phlox.record.record import Record

PIECE = 1 << 30
_ALIGNMENT = 8
_START = b"\x85\xa5phlox"  # a map of five, the first key "phlox"
_FIRST_START = b"\x84\xa5phlox"  # of schema 1, which has no checksums


class _Item(Item):
    data: list[memoryview] = msgspec.field(default_factory=list[memoryview])


class _Document(Document):
    crc32: bytes | None = None


@final
class MessagePackRecorder(Recorder):
    """Named MessagePack: readable by any MessagePack library, streamed when written, mapped when loaded.

    >>> import numpy as np
    >>> recorder = MessagePackRecorder()
    >>> recorder.from_bytes(recorder.to_bytes(Record({"weight": np.ones(3), "step": 7})))["step"]
    7
    """

    format = "msgpack"
    suffix = ".msgpack"
    is_raw = True

    def write(self, record: Record, sink: Sink) -> None:
        """See `Recorder.write`."""
        header = self.header(record)
        sink.write(_START + _pack(header))
        sink.write(_pack("metadata") + _pack(dict(record.metadata)) + _pack("aliases") + _pack(dict(record.aliases)))
        sink.write(_pack("entries") + b"\xdd" + len(record).to_bytes(4, "big"))
        sums: dict[str, int] = {}
        texts: list[bytes] = []
        for path in record:
            entry = record[path]
            if isinstance(entry, TensorEntry):
                sums[path] = _write_tensor(path, entry, sink)
            else:
                text = _pack({"path": path, "value": entry})
                texts.append(text)
                sink.write(text)
        check_message_pack(*texts)
        sink.write(_pack("crc32") + _pack(packed(record, header, sums)))

    def read(self, source: Source) -> Record:
        """See `Recorder.read`."""
        document = msgspec.msgpack.decode(source.data, type=_Document)
        document.phlox.check(self.format)
        metadata = _text_by_name(document.metadata)
        aliases = _text_by_name(document.aliases)
        check_entries(length_of(memoryview(document.entries)))
        items = msgspec.msgpack.decode(document.entries, type=list[_Item])
        check_message_pack(*(memoryview(item.value) for item in items))
        entries = entries_of(items, msgspec.msgpack.decode, lambda item: _tensor(item, source))
        return verified(entries, document.phlox, metadata, aliases, document.crc32, source)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Recorder.recognises`."""
        return head.startswith((_START, _FIRST_START))


_pack = msgspec.msgpack.encode


def _text_by_name(packed: msgspec.Raw) -> dict[str, str]:
    check_message_pack(memoryview(packed))
    texts = msgspec.msgpack.decode(packed, type=dict[str, str])
    if len(texts) != length_of(memoryview(packed)):
        raise RecordError("its metadata or aliases have a name twice")
    return texts


def _write_tensor(path: str, entry: TensorEntry, sink: Sink) -> int:
    tensor, checksum, fields = entry.tensor, start_of(path, entry), fields_of(path, entry)
    sizes = [min(PIECE, tensor.nbytes - start) for start in range(0, tensor.nbytes, PIECE)]
    head = bytes([0x80 + len(fields) + 2]) + b"".join(_pack(key) + _pack(value) for key, value in fields.items())
    head += _pack("pad") + b"\xc4"
    tail = _pack("data") + b"\xdd" + len(sizes).to_bytes(4, "big")
    pad = -(sink.position + len(head) + 1 + len(tail) + 5) % _ALIGNMENT
    sink.write(head + bytes([pad]) + bytes(pad) + tail)
    if len(sizes) == 1:
        sink.write(_piece(sizes[0]))
        return sink.tensor(tensor, checksum)
    room = 0
    for data in sink.blocks(tensor):
        checksum = crc32(data, checksum)
        while len(data):
            if not room:
                room = sizes.pop(0)
                sink.write(_piece(room))
            part, data = data[:room], data[room:]
            sink.write(part)
            room -= len(part)
    return checksum


def _piece(size: int) -> bytes:
    """The header of a piece of so many bytes."""
    return b"\xc6" + size.to_bytes(4, "big")


def _tensor(item: _Item, source: Source) -> LazyTensor:
    (dtype, shape), pieces = item.form(), item.data
    tensor = source.lazy(item.path, dtype, shape, lambda: _joined(pieces, dtype))
    if (size := sum(len(piece) for piece in pieces)) != tensor.nbytes:
        raise RecordError(f"{item.path}: {dtype} of shape {shape} takes {tensor.nbytes} bytes; the file gives {size}")
    return tensor


def _joined(pieces: list[memoryview], dtype: DType) -> Array:
    if len(pieces) == 1:
        return elements(pieces[0], dtype)
    return elements(np.concatenate([np.empty(0, np.uint8), *(np.frombuffer(p, np.uint8) for p in pieces)]).data, dtype)
