"""Flax's MessagePack, as `flax.serialization.to_bytes` writes it: read, without Flax.

A file is a map of maps by the names of a state dict; its leaves are plain values and extension types (in Flax:
`serialization.py`): 1 is an array, `[shape, element type, bytes]` in MessagePack, 2 a complex number, 3 a scalar of
NumPy, packed as an array. An array of more than 1 GiB is a map with the key "__msgpack_chunked_array__" whose "shape"
and "chunks" have the keys "0", "1", ...
"""

from __future__ import annotations

from typing import Any, cast, final

import msgspec
import numpy as np

from phlox.errors import RecordError
from phlox.host.text import shown
from phlox.record.dtypes import DTYPES, Array
from phlox.record.entry import LazyTensor
from phlox.record.formats.pytorch.reader import as_record
from phlox.record.formats.pytorch.values import NumpyArray, NumpyType, Pairs, Unreadable, WorkBudget
from phlox.record.formats.reader import Reader
from phlox.record.io.source import Source, elements
from phlox.record.limits import check_entries, check_message_pack_items, length_of
from phlox.record.record import Record

_CHUNKED = "__msgpack_chunked_array__"
_MAX_DEPTH = 64
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_SIZED = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_BY_NAME = {dtype.name: dtype for dtype in DTYPES.values()}
_MAPS = {**{0x80 + count: 0 for count in range(1, 16)}, 0xDE: 2, 0xDF: 4}
"""First byte of a non-empty map -> number of length bytes that follow."""


@final
class FlaxReader(Reader):
    """Reads files of `flax.serialization.to_bytes`: parameters and whole train states, by name.

    Arrays are views of the mapped file. Complex arrays and numbers are `Record.unreadable`.

    >>> ones = msgspec.msgpack.encode([[2], "float32", np.ones(2, np.float32).tobytes()])
    >>> data = msgspec.msgpack.encode({"params": {"bias": msgspec.msgpack.Ext(1, ones)}, "step": 3})
    >>> record = FlaxReader().from_bytes(data)
    >>> record.paths(), record["params.bias"].tensor.read()
    (['params.bias', 'step'], array([1., 1.], dtype=float32))
    """

    format = "flax"
    suffix = ".msgpack"
    other_suffixes = (".flax",)

    def read(self, source: Source) -> Record:
        """See `Reader.read`."""
        check_message_pack_items(source.data)
        root = _Decoder(source).node(msgspec.Raw(source.data), "", 0)
        return as_record(source, root, WorkBudget(8 * len(source.data) + 100_000), self.max_bytes)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Reader.recognises`."""
        first = head[0] if head else 0
        if first in _FIXED or first in _SIZED:
            return head[1 + _SIZED.get(first, 0) :][:1] in (b"\x01", b"\x03")
        key = head[1 + _MAPS[first] :][:1] if first in _MAPS else b""
        return b"\xa1" <= key <= b"\xbf" or key == b"\xd9"


class _Decoder:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._entries = 0

    def node(self, raw: msgspec.Raw, path: str, depth: int) -> object:
        """Decode a node to an inert value."""
        if depth > _MAX_DEPTH:
            raise RecordError(f"{shown(path)}: it nests more than {_MAX_DEPTH} levels deep")
        data = memoryview(raw)
        first = data[0] if len(data) else 0
        if 0x80 <= first < 0x90 or first in _MAPS:
            return self._map(raw, path, depth)
        if first in _FIXED or first in _SIZED:
            return self._extension(*_unpacked(data), path)
        return msgspec.msgpack.decode(raw, ext_hook=_foreign)

    def _map(self, raw: msgspec.Raw, path: str, depth: int) -> object:
        count = length_of(memoryview(raw))
        self._entries += count
        check_entries(self._entries)
        items = msgspec.msgpack.decode(raw, type=dict[str | int, msgspec.Raw])
        if len(items) != count:
            raise RecordError(f"{shown(path)}: it names an entry twice")
        before = path + "." if path else ""
        nodes = {key: self.node(item, f"{before}{key}", depth + 1) for key, item in items.items()}
        return self._joined(nodes, path) if _CHUNKED in nodes else Pairs(list(nodes.items()))

    def _extension(self, code: int, payload: memoryview, path: str) -> object:
        if code == _COMPLEX:
            return Unreadable("a complex number")
        if code not in (_ARRAY, _SCALAR):
            return Unreadable(f"a value of the extension type {code}")
        shape, name, data = msgspec.msgpack.decode(payload, type=tuple[list[int], str, memoryview])
        if name not in _BY_NAME:
            return Unreadable(f"an array of {shown(name)}")
        dtype = _BY_NAME[name]
        tensor = self._source.lazy(path, dtype, shape, lambda: elements(data, dtype))
        if tensor.nbytes != len(data):
            raise RecordError(
                f"{shown(path)}: {dtype} of shape {tensor.shape} takes {tensor.nbytes} bytes; "
                f"the file gives {len(data)}"
            )
        return NumpyArray(NumpyType(dtype), (), False, bytes(data), True) if code == _SCALAR and not shape else tensor

    def _joined(self, nodes: dict[Any, object], path: str) -> object:
        """Join an array that is stored in chunks."""
        sizes, parts = _listed(nodes.get("shape")), _listed(nodes.get("chunks"))
        if any(isinstance(part, Unreadable) for part in parts):
            return next(part for part in parts if isinstance(part, Unreadable))
        tensors = [part for part in parts if isinstance(part, LazyTensor) and len(part.shape) == 1]
        types = {tensor.dtype for tensor in tensors}
        if len(tensors) != len(parts) or len(types) != 1 or not all(type(size) is int for size in sizes):
            raise RecordError(f"{shown(path)}: it has the key of an array in pieces, but is not one")

        def joined() -> Array:
            return np.concatenate([tensor.read() for tensor in tensors])

        result = self._source.lazy(path, tensors[0].dtype, sizes, joined)
        if result.size != sum(tensor.size for tensor in tensors):
            raise RecordError(f"{shown(path)}: its pieces do not make up its shape {result.shape}")
        return result


def _listed(node: object) -> list[Any]:
    items = dict(cast("list[tuple[Any, Any]]", node.items)) if isinstance(node, Pairs) else {}
    if list(items) != [str(i) for i in range(len(items))]:
        items = {str(i): items.get(str(i), items.get(i)) for i in range(len(items))}
    return list(items.values())


def _foreign(code: int, data: memoryview) -> Any:
    raise RecordError(f"a list of it has a value of the extension type {code}, where Flax writes none")


def _unpacked(data: memoryview) -> tuple[int, memoryview]:
    """The code and the content of an extension value."""
    width = _SIZED.get(data[0], 0)
    size = int.from_bytes(data[1 : 1 + width], "big") if width else _FIXED[data[0]]
    start = 2 + width
    if len(data) != start + size:
        raise RecordError(f"an extension type claims {size} bytes and has {len(data) - start}")
    return int.from_bytes(data[1 + width : start], "big", signed=True), data[start:]
