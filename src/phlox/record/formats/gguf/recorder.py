"""The GGUF format of llama.cpp (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3.

A file is "GGUF", the version, the numbers of tensors and of keys, the keys with typed values, for each tensor its name,
its sizes (the fastest axis first), type and offset, and then the elements of each at a multiple of the alignment. The
metadata of a record are keys, see `keys`; the rest of a record is JSON under the key "phlox".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias, final

import msgspec
import numpy as np

from phlox.backend.sharding import Index
from phlox.errors import RecordError
from phlox.record.dtypes import DTYPES, SHORT_NAMES, Array, checked_shape
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.gguf.blocks import REFUSED, TYPES, BlockType, fitting
from phlox.record.formats.gguf.keys import (
    TYPES_KEY,
    Cursor,
    KeyValue,
    as_metadata,
    encoded_text,
    encoded_value,
    from_metadata,
)
from phlox.record.formats.gguf.quantization import quantized
from phlox.record.formats.recorder import Recorder
from phlox.record.formats.safetensors import SIGNS, ArrayInfo
from phlox.record.io.checksums import WIDTH, packed, start_of, verified
from phlox.record.io.compression import Compression
from phlox.record.io.sink import Sink
from phlox.record.io.source import Source
from phlox.record.limits import check_entries, check_json, check_size
from phlox.record.packed import Packing
from phlox.record.precision import FULL, PrecisionLike
from phlox.record.record import Record, UnreadableEntryError, check_name

TypeLike: TypeAlias = "str | Callable[[str], str | None] | None"

_MAGIC = b"GGUF"
_VERSION = 3
_ALIGNMENT = 32
_ALIGNMENT_KEY, _BLOCKS_KEY = "general.alignment", "general.quantization_version"
_MAX_AXES = 4
_OURS = "phlox"
_SIGN = '"format":"gguf"'
_AFTER_CHECKSUMS = '"}'
_F32 = DTYPES["f32"]
_ELEMENTS = {0: "f32", 1: "f16", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 30: "bf16"}
_NUMBERS = {name: number for number, name in _ELEMENTS.items()}
_BLOCKS = {kind.number: kind for kind in TYPES.values()}
_SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What llama.cpp takes for rows that have no whole blocks of 256 elements."""


class GgufInfo(ArrayInfo, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a record that GGUF lacks, as JSON under the key "phlox"."""

    dtypes: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """The dtypes that GGUF does not have; their bytes are stored as signed integers of the same size."""
    crc32: str | None = None
    """The checksums; empty in a compressed file, which has the checksums of the compression."""


@final
class GgufRecorder(Recorder):
    """GGUF, the format of llama.cpp: a mapped file whose matrices may be quantized.

    A quantized tensor is dequantized when it is read, to float32. `LazyTensor.packed` gives its codes and scales as
    they are, and a tensor that has them is written back without change.

    Args:
        precision, compression, max_bytes, verify: see `Recorder`.
        type: what floats with two axes or more are written as: "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0",
            "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL" or "MXFP4"; if rows do not divide into blocks of 256, Q4_K is
            written as Q5_0, Q5_K as Q5_1, Q6_K as Q8_0, and if not into blocks of 32, at the precision. Or a function
            from a path to one of them, or to None: a tensor is written as it is, at the precision. None for all by
            default.

    >>> rows = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    >>> recorder = GgufRecorder(type="Q8_0")
    >>> tensor = recorder.from_bytes(recorder.to_bytes(Record({"output.weight": rows})))["output.weight"].tensor
    >>> tensor.stored_as, tensor.packed().coding, bool(abs(tensor.read() - rows).max() < 0.005)
    (('Q8_0', 68), 'int8', True)
    """

    format = "gguf"
    suffix = ".gguf"
    is_raw = True
    has_room = True

    def __init__(
        self,
        precision: PrecisionLike = FULL,
        compression: Compression | None = None,
        *,
        type: TypeLike = None,
        durable: bool = True,
        max_bytes: int | None = None,
        verify: bool = True,
    ) -> None:
        super().__init__(precision, compression, durable=durable, max_bytes=max_bytes, verify=verify)
        if isinstance(type, str):
            _checked_type(type)
        self.type = type

    def write(self, record: Record, sink: Sink) -> None:
        """See `Recorder.write`. RecordError for a tensor of more than four axes, and for a reserved key."""
        if _OURS in record.metadata:
            raise RecordError(f"the key {_OURS!r} is reserved in GGUF; choose another")
        values = from_metadata(record.metadata)
        stored = {path: self._stored(path, entry.tensor) for path, entry in record.tensors.items()}
        if any(number in _BLOCKS for number, _ in stored.values()):
            values.setdefault(_BLOCKS_KEY, np.uint32(2))
        alignment = _alignment(values)
        own, record = self.header(record), record.with_entries({}, as_metadata(values))
        names = {path: SHORT_NAMES[tensor.dtype] for path, (number, tensor) in stored.items() if number not in _BLOCKS}
        others = {path: name for path, name in names.items() if name not in _NUMBERS}
        room = "0" * (2 * WIDTH * (len(record) + 1)) if sink.can_patch else ""
        text = msgspec.json.encode(GgufInfo.of_record(record, own, stored, dtypes=others, crc32=room))
        check_json(text)
        values[_OURS] = text.decode()
        parts = [_MAGIC, _VERSION.to_bytes(4, "little")]
        parts += [count.to_bytes(8, "little") for count in (len(stored), len(values))]
        parts += [encoded_text(key) + encoded_value(key, value) for key, value in values.items()]
        position = sum(map(len, parts)) - len(_AFTER_CHECKSUMS) - len(room)
        offset = 0
        for path, (number, tensor) in stored.items():
            sizes = record.tensors[path].tensor.shape[::-1]
            if len(sizes) > _MAX_AXES:
                raise RecordError(f"{path}: GGUF holds tensors of at most {_MAX_AXES} axes, not {len(sizes)}")
            parts += [encoded_text(path), len(sizes).to_bytes(4, "little"), np.array(sizes, "<u8").tobytes()]
            parts += [number.to_bytes(4, "little"), offset.to_bytes(8, "little")]
            offset += tensor.nbytes + -tensor.nbytes % alignment
        head = b"".join(parts)
        check_size(len(head))
        sink.write(head + bytes(-len(head) % alignment))
        sums: dict[str, int] = {}
        for path, (_, tensor) in stored.items():
            sums[path] = sink.tensor(tensor, start_of(path, TensorEntry(tensor, record.tensors[path].id)))
            sink.write(bytes(-tensor.nbytes % alignment))
        if sink.can_patch:
            sink.patch(position, packed(record, own, sums).hex().encode())

    def read(self, source: Source) -> Record:
        """See `Recorder.read`. Tensors of types that Phlox does not read are `Record.unreadable`."""
        cursor = Cursor(source.data)
        if bytes(cursor.take(4)) != _MAGIC:
            raise RecordError("it does not begin as one")
        version = cursor.number(4)
        if version not in (2, _VERSION):
            swapped = not version & 0xFFFF
            why = "it is big-endian" if swapped else f"it has version {version}; Phlox reads versions 2 and {_VERSION}"
            raise RecordError(f"{why}: convert the original weights with a current llama.cpp")
        count = cursor.count("tensors", 24)
        check_entries(count)
        values: dict[str, KeyValue] = {}
        for _ in range(cursor.count("keys", 13)):
            cursor.subject, start = "a key", cursor.at
            key = cursor.text()
            cursor.subject = f"the key {key[:200]!r}"
            if key in values or key == TYPES_KEY:
                raise cursor.error("it is there twice" if key in values else "its name is reserved", start)
            values[key] = cursor.value()
        info = _info(values)
        alignment = _alignment(values)
        described = _described(cursor, count)
        start = cursor.at + -cursor.at % alignment
        dtypes = {} if info is None else info.dtypes
        tensors, unreadable, end = _tensors(source, cursor, described, start, alignment, dtypes)
        if end is not None and (end < len(source.data) or (info is not None and end > len(source.data))):
            raise RecordError(f"its tensors end at byte {end} of {len(source.data)}")
        metadata = as_metadata(values)
        if info is None:
            record = Record(tensors, metadata, unreadable=unreadable)
        else:
            for path, why in unreadable.items():  # Phlox never writes these
                raise RecordError(f"{path}: {why}")
            record = _restored(tensors, metadata, info, source)
        blocks = {path: _BLOCKS[each.number] for path, each in described.items() if each.number in _BLOCKS}
        return record.with_entries(
            {
                path: TensorEntry(_dequantized(entry.tensor, blocks[path], described[path].shape), entry.id)
                for path, entry in record.tensors.items()
                if path in blocks
            }
        )

    def room(self, record: Record) -> int:
        """See `Recorder.room`."""
        return sum([self._stored(path, entry.tensor)[1].nbytes for path, entry in record.tensors.items()])

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Recorder.recognises`."""
        return head.startswith(_MAGIC)

    def _stored(self, path: str, tensor: LazyTensor) -> tuple[int, LazyTensor]:
        """The number of the type of a tensor in the file, and the tensor whose elements are the bytes."""
        kind = self._kind(path, tensor)
        if isinstance(kind, BlockType):
            shape = math.prod(tensor.shape[:-1]), kind.row_bytes(tensor.shape[-1])
            encode = partial(_encoded, tensor, kind, path)
            return kind.number, LazyTensor.from_function(shape, np.uint8, encode, path)
        if kind is not None:
            tensor = tensor.astype(DTYPES[kind.lower()], path)
        name = SHORT_NAMES[tensor.dtype]
        return _NUMBERS[name if name in _NUMBERS else f"i{8 * tensor.dtype.itemsize}"], tensor

    def _kind(self, path: str, tensor: LazyTensor) -> BlockType | str | None:
        """The block type of a tensor in the file, or the name of another type that was asked for."""
        name = self.type(path) if callable(self.type) else self.type
        if name is None:
            packing = tensor.packing
            return None if packing is None else TYPES.get(packing.type) or fitting(packing.read())
        if len(tensor.shape) < 2 or tensor.kind != "float":
            return None
        kind = TYPES.get(_checked_type(name), name)
        while isinstance(kind, BlockType) and tensor.shape[-1] % kind.block:
            kind = TYPES.get(_SMALLER.get(kind.name, ""))
        return kind


def _checked_type(name: str) -> str:
    if name not in TYPES and name not in ("F32", "F16", "BF16"):
        raise RecordError(f"type={name!r}: expected one of F32, F16, BF16, {', '.join(TYPES)}")
    return name


def _encoded(tensor: LazyTensor, kind: BlockType, path: str) -> Array:
    if (packed := tensor.packed()) is not None:
        try:
            return kind.bytes_of(packed)
        except RecordError:  # of another type
            pass
    try:
        return kind.encoded(tensor.read().reshape(-1, tensor.shape[-1]), quantized)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def _alignment(values: dict[str, KeyValue]) -> int:
    value = np.asarray(values.get(_ALIGNMENT_KEY, _ALIGNMENT))
    alignment = int(value) if value.dtype.kind in "iu" and not value.ndim else 0
    if alignment < 1 or alignment & (alignment - 1):
        raise RecordError(f"the key {_ALIGNMENT_KEY}: {str(value)[:40]} is not a power of two")
    return alignment


def _info(values: dict[str, KeyValue]) -> GgufInfo | None:
    text = values.pop(_OURS, None)
    if text is None:
        texts = [text for text in values.values() if isinstance(text, str)]
        if any(sign in each for each in (*values, *texts) for sign in (_SIGN, SIGNS[1])):
            raise RecordError(f"its keys have the data of Phlox, but not under {_OURS!r}: the file is damaged")
        return None
    if not isinstance(text, str):
        raise RecordError(f"the key {_OURS!r} is not text")
    check_json(text.encode())
    info = msgspec.json.decode(text, type=GgufInfo)
    info.check(GgufRecorder.format)
    return info


def _restored(tensors: dict[str, LazyTensor], metadata: dict[str, str], info: GgufInfo, source: Source) -> Record:
    check_entries(len(tensors) + len(info.values))
    entries = info.entries(tensors)
    header = msgspec.structs.replace(info, crc32=None)
    if info.crc32 == "":
        return Record(entries, metadata, aliases=info.aliases, positional=info.positional, header=header)
    sums = None if info.crc32 is None else bytes.fromhex(info.crc32)
    return verified(entries, header, metadata, info.aliases, sums, source)


class _Described(NamedTuple):
    """What a file says of a tensor, and at which byte."""

    shape: tuple[int, ...]
    number: int
    offset: int
    at: int


def _described(cursor: Cursor, count: int) -> dict[str, _Described]:
    result: dict[str, _Described] = {}
    for _ in range(count):
        cursor.subject, start = "a tensor", cursor.at
        name = cursor.text()
        cursor.subject = f"the tensor {name[:200]!r}"
        if name in result:
            raise cursor.error("it is there twice", start)
        start, axes = cursor.at, cursor.number(4)
        if axes > _MAX_AXES:
            raise cursor.error(f"{axes} axes are claimed; the most is {_MAX_AXES}", start)
        sizes = [cursor.number(8) for _ in range(axes)]
        try:
            shape = checked_shape(sizes[::-1], DTYPES["f64"], "its sizes")
        except RecordError as error:
            raise cursor.error(str(error), start) from None
        result[name] = _Described(shape, cursor.number(4), cursor.number(8), start)
    return result


def _tensors(
    source: Source,
    cursor: Cursor,
    described: dict[str, _Described],
    data_start: int,
    alignment: int,
    dtypes: dict[str, str],
) -> tuple[dict[str, LazyTensor], dict[str, str], int | None]:
    """The tensors by name (of block types: as bytes), why others cannot be read, and where the last ends, if known.

    They follow each other without gaps.
    """
    expected: int | None = 0
    tensors: dict[str, LazyTensor] = {}
    unreadable: dict[str, str] = {}
    for name, tensor in described.items():
        cursor.subject = f"the tensor {name[:200]!r}"
        if tensor.offset % alignment or (expected is not None and tensor.offset != expected):
            where = "a multiple of the alignment" if expected is None else str(expected)
            raise cursor.error(f"its elements begin at {tensor.offset}, where {where} was expected", tensor.at)
        block, size, why = _form(name, tensor.number)
        columns = tensor.shape[-1] if tensor.shape else 1
        if columns % block:
            raise cursor.error(f"rows of {columns} elements are not whole blocks of {block}", tensor.at)
        nbytes, start = math.prod(tensor.shape) // block * size, data_start + tensor.offset
        if start + nbytes > len(source.data):
            raise cursor.error(f"its {nbytes} bytes begin at byte {start} of {len(source.data)}; truncated?", tensor.at)
        expected = tensor.offset + nbytes + -nbytes % alignment if size else None
        if why:
            unreadable[name] = why
        elif tensor.number in _BLOCKS:
            rows = math.prod(tensor.shape[:-1])
            tensors[name] = source.tensor(name, DTYPES["u8"], (rows, columns // block * size), start, start + nbytes)
        else:
            dtype = DTYPES.get(dtypes.get(name, ""), DTYPES[_ELEMENTS[tensor.number]])
            tensors[name] = source.tensor(name, dtype, tensor.shape, start, start + nbytes)
    return tensors, unreadable, None if expected is None else data_start + expected


def _form(name: str, number: int) -> tuple[int, int, str]:
    """The elements and bytes of a block of a type (0: unknown), and why the tensor cannot be read, if so."""
    why = ""
    try:
        check_name(name)
    except UnreadableEntryError as error:
        why = str(error)
    if number in _ELEMENTS:
        return 1, DTYPES[_ELEMENTS[number]].itemsize, why
    if number in _BLOCKS:
        return _BLOCKS[number].block, _BLOCKS[number].size, why
    type_name, block, size = REFUSED.get(number, (f"the unknown type {number}", 1, 0))
    remedy = "llama-quantize --allow-requantize of llama.cpp makes it one of those, such as Q4_K"
    return block, size, f"its elements are {type_name}; Phlox reads F32, F16, BF16, {', '.join(TYPES)}: {remedy}"


def _dequantized(stored: LazyTensor, kind: BlockType, shape: tuple[int, ...]) -> LazyTensor:
    """The tensor of float32 whose rows of blocks are those of `stored`, dequantized when it is read."""

    def part(index: Index) -> Array:
        """A part, from only the blocks that its range of the first axis has."""
        if len(shape) < 2:
            return read()[index]
        first, *others = index
        step, width = math.prod(shape[1:-1]), stored.shape[1]
        rows = stored.read_part((slice(first.start * step, first.stop * step), slice(0, width)))
        return kind.dequantized(rows).reshape(first.stop - first.start, *shape[1:])[:, *others]

    def read() -> Array:
        return kind.dequantized(stored.read()).reshape(shape)

    packing = Packing(kind.name, stored.nbytes, lambda: kind.packed(stored.read()))
    return LazyTensor(shape, _F32, _F32, read, stored.path, part=part, packing=packing)
