"""JSON: for people, and for programs that read no other format.

A file is an object: "phlox" -> the header, "metadata" and "aliases" -> text by name, "entries" -> an array of objects
in the order of the record, "crc32" -> the checksums, as hexadecimal digits. A plain value is `{"path", "value"}` (a
float that is not finite is `{"$float": "nan"}`, see `values.to_json`). A tensor is `{"path", "dtype", "shape", "id"?,
"data"}`, where "data" is either the base64 of the raw little-endian elements, or an array of all elements in C order as
numbers, true and false; "NaN", "Infinity" and "-Infinity" are the floats that JSON numbers lack.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable
from typing import Any, Literal, final

import msgspec
import numpy as np

from phlox.errors import RecordError
from phlox.record.dtypes import BLOCK, Array, DType, cast_elements, element_bytes, kind_of
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.recorder import Recorder
from phlox.record.header import Document, Item, entries_of, fields_of
from phlox.record.io.checksums import packed, start_of, verified
from phlox.record.io.compression import Compression
from phlox.record.io.crc32 import crc32
from phlox.record.io.sink import Sink
from phlox.record.io.source import Source, elements
from phlox.record.limits import check_entries, check_json
from phlox.record.precision import FULL, PrecisionLike
from phlox.record.record import Record
from phlox.record.values import from_json, to_json

_NOT_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


class _Item(Item):
    data: msgspec.Raw = msgspec.Raw(b"[]")


class _Document(Document):
    crc32: str | None = None


@final
class JsonRecorder(Recorder):
    """JSON; exact for every value, in both forms of numbers.

    Args:
        precision, compression, max_bytes, verify: see `Recorder`.
        indent: spaces per level, or None for one line.
        numbers: "base64" (4/3 of the raw size), or "decimal" (the shortest digits that read back to the same element).

    >>> import numpy as np
    >>> recorder = JsonRecorder(numbers="decimal")
    >>> b'"data":[0.1,"NaN"]' in recorder.to_bytes(Record({"weight": np.array([0.1, np.nan])}))
    True
    """

    format = "json"
    suffix = ".json"

    def __init__(
        self,
        precision: PrecisionLike = FULL,
        compression: Compression | None = None,
        *,
        indent: int | None = None,
        numbers: Literal["base64", "decimal"] = "base64",
        durable: bool = True,
        max_bytes: int | None = None,
        verify: bool = True,
    ) -> None:
        super().__init__(precision, compression, durable=durable, max_bytes=max_bytes, verify=verify)
        if numbers not in ("base64", "decimal"):
            raise RecordError(f'numbers={numbers!r}: expected "base64" or "decimal"')
        self.indent = indent
        self.numbers = numbers

    def write(self, record: Record, sink: Sink) -> None:
        """See `Recorder.write`."""
        header = self.header(record)
        document = {
            "phlox": msgspec.to_builtins(header),
            "metadata": dict(record.metadata),
            "aliases": dict(record.aliases),
            "entries": None,
        }
        head, tail = self._around_null(document, 0)
        sink.write(head + b"[")
        newline = "" if self.indent is None else "\n" + " " * 2 * self.indent
        sums: dict[str, int] = {}
        texts: list[bytes] = []
        for i, path in enumerate(record):
            sink.write(("," * (i > 0) + newline).encode())
            entry = record[path]
            if isinstance(entry, TensorEntry):
                sums[path] = self._write_tensor(path, entry, sink)
            else:
                text = self._dumps({"path": path, "value": to_json(entry)}, 2).encode()
                texts.append(text)
                sink.write(text)
        if len(record) and self.indent is not None:
            sink.write(("\n" + " " * self.indent).encode())
        check_json(*texts)
        line = "" if self.indent is None else "\n" + " " * self.indent
        checksums = f'],{line}"crc32":{"" if self.indent is None else " "}"{packed(record, header, sums).hex()}"'
        sink.write(checksums.encode() + tail + b"\n" * (self.indent is not None))

    def read(self, source: Source) -> Record:
        """See `Recorder.read`. The elements of a tensor are decoded when it is read."""
        document = msgspec.json.decode(source.data, type=_Document)
        document.phlox.check(self.format)
        metadata = _text_by_name(document.metadata)
        aliases = _text_by_name(document.aliases)
        items = msgspec.json.decode(document.entries, type=list[_Item])
        check_entries(len(items))
        check_json(*(memoryview(item.value) for item in items))
        entries = entries_of(
            items, lambda value: from_json(msgspec.json.decode(value)), lambda item: _tensor(item, source)
        )
        sums = None if document.crc32 is None else bytes.fromhex(document.crc32)
        return verified(entries, document.phlox, metadata, aliases, sums, source)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Recorder.recognises`."""
        return re.match(rb'\s*\{\s*"phlox"', head) is not None

    def _write_tensor(self, path: str, entry: TensorEntry, sink: Sink) -> int:
        head, tail = self._around_null({**fields_of(path, entry), "data": None}, 2)
        sink.write(head)
        write = _write_base64 if self.numbers == "base64" else _write_decimal
        checksum = write(entry.tensor, sink, start_of(path, entry))
        sink.write(tail)
        return checksum

    def _dumps(self, value: Any, level: int) -> str:
        separators = (",", ":") if self.indent is None else (",", ": ")
        text = json.dumps(value, indent=self.indent, ensure_ascii=False, allow_nan=False, separators=separators)
        # Line breaks in strings are escaped, so all of these are between items.
        return text if self.indent is None else text.replace("\n", "\n" + " " * (self.indent * level))

    def _around_null(self, value: dict[str, Any], level: int) -> tuple[bytes, bytes]:
        head, _, tail = self._dumps(value, level).rpartition("null")
        return head.encode(), tail.encode()


def _text_by_name(text: msgspec.Raw) -> dict[str, str]:
    check_json(memoryview(text))
    texts = msgspec.json.decode(text, type=dict[str, str])
    pairs: list[tuple[str, str]] = json.loads(bytes(text), object_pairs_hook=list)
    if len(texts) != len(pairs):
        raise RecordError("its metadata or aliases have a name twice")
    return texts


def _write_base64(tensor: LazyTensor, sink: Sink, checksum: int) -> int:
    sink.write(b'"')
    remainder = b""
    for block in tensor.blocks():
        data = element_bytes(block)
        part, piece = data[:0], b""
        for start in range(0, len(data), BLOCK):
            part = data[start : start + BLOCK]
            checksum = crc32(part, checksum)
            piece = remainder + bytes(part)
            whole = len(piece) - len(piece) % 3
            sink.write(binascii.b2a_base64(piece[:whole], newline=False))
            remainder = piece[whole:]
        del block, data, part, piece  # frees them before the next block is computed
    sink.write(binascii.b2a_base64(remainder, newline=False) + b'"')
    return checksum


def _write_decimal(tensor: LazyTensor, sink: Sink, checksum: int) -> int:
    comma = b""
    sink.write(b"[")
    for block in tensor.blocks():
        for start in range(0, block.size, BLOCK):
            part = block[start : start + BLOCK]
            checksum = crc32(element_bytes(_as_read(part)), checksum)
            sink.write(comma + ",".join(_numbers(part)).encode())
            comma = b","
    sink.write(b"]")
    return checksum


def _as_read(array: Array) -> Array:
    """`array` as read back from decimal digits, which do not distinguish NaNs."""
    if kind_of(array.dtype) != "float":
        return array
    with np.errstate(invalid="ignore"):  # signalling NaNs
        nan = np.isnan(array)
    if not nan.any():
        return array
    return np.where(nan, cast_elements(np.array([np.nan]), array.dtype), array)


def _numbers(array: Array) -> Iterable[str]:
    kind = kind_of(array.dtype)
    if kind != "float":
        return ("true" if x else "false" for x in array) if kind == "bool" else map(str, array.tolist())
    with np.errstate(all="ignore"):  # signalling NaNs
        if array.dtype.kind == "V":  # bfloat16 has no shortest-digits printing of its own
            array = array.astype(np.float32)
        texts = list(map(str, array))
        # A reader rounds to float64 first. Where that changes the result, use the digits of the exact value.
        spoiled = np.array(texts, np.float64).astype(array.dtype) != array
        finite = np.isfinite(array)
    for i in np.flatnonzero(spoiled & finite):
        texts[i] = repr(float(array[i]))
    for i in np.flatnonzero(~finite):
        texts[i] = '"NaN"' if np.isnan(array[i]) else '"Infinity"' if array[i] > 0 else '"-Infinity"'
    return texts


def _tensor(item: _Item, source: Source) -> LazyTensor:
    (dtype, shape), text = item.form(), memoryview(item.data)
    is_base64 = bytes(text[:1]) == b'"'
    tensor = source.lazy(item.path, dtype, shape, lambda: (_from_base64 if is_base64 else _from_decimal)(text, dtype))
    if is_base64 and len(text) - 2 != (expected := -(-tensor.nbytes // 3) * 4):
        raise RecordError(
            f"{item.path}: {dtype} of shape {shape} takes {expected} characters of base64; "
            f"the file gives {len(text) - 2}"
        )
    # An element and its comma take two characters, so `read` cannot allocate more than the file's size.
    if not is_base64 and len(text) < 2 * tensor.size:
        raise RecordError(f"{item.path}: shape {shape} needs {tensor.size} elements; the file gives fewer")
    return tensor


def _from_base64(text: memoryview, dtype: DType) -> Array:
    return elements(memoryview(binascii.a2b_base64(text[1:-1], strict_mode=True)), dtype)


def _from_decimal(text: memoryview, dtype: DType) -> Array:
    kind = kind_of(dtype)
    if kind == "bool":
        return np.array(msgspec.json.decode(text, type=list[bool]), np.bool_)
    if kind == "int":
        wide = np.uint64 if dtype.kind == "u" else np.int64
        return cast_elements(np.array(msgspec.json.decode(text, type=list[int]), wide), dtype)
    numbers = msgspec.json.decode(text, type=list[float | Literal["NaN", "Infinity", "-Infinity"]])
    wide = np.array([_NOT_FINITE[x] if isinstance(x, str) else x for x in numbers], np.float64)
    return cast_elements(wide, dtype)
