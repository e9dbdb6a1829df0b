"""Named MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md).

A file is a map: "phlox" -> the header, "metadata" and "aliases" -> text by name, "entries" -> an array of maps in the
order of the record. A plain value is `{"path", "value"}`. A tensor is `{"path", "dtype", "shape", "id"?, "pad",
"data"}`, where "data" is an array of `bin`, the raw little-endian elements in pieces of at most 1 GiB (a `bin` ends at
4 GiB), and "pad" is a `bin` of as many zero bytes as make the first piece begin at a multiple of 8, so that it can be
mapped.
"""

from __future__ import annotations

from typing import Any, final

import msgspec
import numpy as np

from phlox.errors import RecordError
from phlox.record.dtypes import DTYPES, SHORT_NAMES, Array, DType, checked_shape
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.header import Header
from phlox.record.record import Entry, Record
from phlox.record.recorder import Recorder
from phlox.record.sink import Sink, element_bytes
from phlox.record.source import Source, elements

PIECE = 1 << 30
_ALIGNMENT = 8
_START = b"\x84\xa5phlox"  # a map of four, the first key "phlox"


class _Item(msgspec.Struct):
    path: str
    value: Any = msgspec.UNSET
    id: str | None = None
    dtype: str = ""
    shape: list[int] = []
    data: list[memoryview] = []


class _Document(msgspec.Struct):
    phlox: Header
    metadata: dict[str, str]
    aliases: dict[str, str]
    entries: list[_Item]


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

    def write(self, record: Record, sink: Sink) -> None:
        """See `Recorder.write`."""
        sink.write(_START + _pack(self.header(record)))
        sink.write(_pack("metadata") + _pack(dict(record.metadata)) + _pack("aliases") + _pack(dict(record.aliases)))
        sink.write(_pack("entries") + b"\xdd" + len(record).to_bytes(4, "big"))
        for path in record:
            entry = record[path]
            if isinstance(entry, TensorEntry):
                _write_tensor(path, entry, sink)
            else:
                sink.write(_pack({"path": path, "value": entry}))

    def read(self, source: Source) -> Record:
        """See `Recorder.read`."""
        document = msgspec.msgpack.decode(source.data, type=_Document)
        document.phlox.check(self.format)
        entries: dict[str, Entry] = {}
        for item in document.entries:
            if item.path in entries:
                raise RecordError(f"it names {item.path!r} twice")
            if item.value is msgspec.UNSET:
                entries[item.path] = TensorEntry(_tensor(item, source), item.id)
            else:
                entries[item.path] = item.value
        header = document.phlox
        return Record(entries, document.metadata, aliases=document.aliases, positional=header.positional, header=header)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Recorder.recognises`."""
        return head.startswith(_START)


_pack = msgspec.msgpack.encode


def _write_tensor(path: str, entry: TensorEntry, sink: Sink) -> None:
    tensor = entry.tensor
    fields: dict[str, Any] = {"path": path, "dtype": SHORT_NAMES[tensor.dtype], "shape": tensor.shape}
    if entry.id is not None:
        fields["id"] = entry.id
    sizes = [min(PIECE, tensor.nbytes - start) for start in range(0, tensor.nbytes, PIECE)]
    head = bytes([0x80 + len(fields) + 2]) + b"".join(_pack(key) + _pack(value) for key, value in fields.items())
    head += _pack("pad") + b"\xc4"
    tail = _pack("data") + b"\xdd" + len(sizes).to_bytes(4, "big")
    pad = -(sink.position + len(head) + 1 + len(tail) + 5) % _ALIGNMENT
    sink.write(head + bytes([pad]) + bytes(pad) + tail)
    room = 0
    for block in tensor.blocks():
        data = element_bytes(block)
        while len(data):
            if not room:
                room = sizes.pop(0)
                sink.write(b"\xc6" + room.to_bytes(4, "big"))
            piece, data = data[:room], data[room:]
            sink.write(piece)
            room -= len(piece)


def _tensor(item: _Item, source: Source) -> LazyTensor:
    if item.dtype not in DTYPES:
        raise RecordError(f"{item.path}: {item.dtype[:40]!r} is no element type of a record ({', '.join(DTYPES)})")
    dtype, pieces = DTYPES[item.dtype], item.data
    shape = checked_shape(item.shape, dtype, item.path)
    tensor = source.lazy(item.path, dtype, shape, lambda: _joined(pieces, dtype))
    if (given := sum(len(piece) for piece in pieces)) != tensor.nbytes:
        raise RecordError(f"{item.path}: {dtype} of shape {shape} takes {tensor.nbytes} bytes; the file gives {given}")
    return tensor


def _joined(pieces: list[memoryview], dtype: DType) -> Array:
    if len(pieces) == 1:
        return elements(pieces[0], dtype)
    return elements(np.concatenate([np.empty(0, np.uint8), *(np.frombuffer(p, np.uint8) for p in pieces)]).data, dtype)
