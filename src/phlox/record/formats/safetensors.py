"""The safetensors format (https://github.com/huggingface/safetensors, README, "Format"): the default.

A file is the length of the header (8 bytes, little-endian), the header (JSON, padded with spaces so that the tensors
begin at a multiple of 64, from where all engines can use a mapped file without a copy), and the tensors without gaps,
ordered by descending alignment of the dtype and then by name. The header has the "dtype", "shape" and "data_offsets" of
each tensor. Its "__metadata__" maps names to text: the record's metadata, and under "phlox" a JSON object with the
fields of `SafetensorsInfo`. Any safetensors reader reads the file. Ours reads any file whose dtypes a record supports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self, cast, final

import msgspec

from phlox.errors import RecordError
from phlox.record import limits
from phlox.record.dtypes import DTYPES
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.recorder import Recorder
from phlox.record.header import SCHEMA, Header
from phlox.record.io.checksums import WIDTH, packed, start_of, verified
from phlox.record.io.sink import Sink
from phlox.record.io.source import Source
from phlox.record.limits import MAX_TEXT, check_entries, check_json
from phlox.record.record import Record, UnreadableEntryError, check_name
from phlox.record.values import Value, from_json, to_json

_FLOAT8 = ("f8_e5m2fnuz", "f8_e4m3fnuz", "f8_e8m0", "f8_e4m3", "f8_e5m2")
_ORDER = ("u64", "i64", "f64", "f32", "u32", "i32", "bf16", "f16", "u16", "i16", *_FLOAT8, "i8", "u8", "bool")
_RANK = {DTYPES[name]: rank for rank, name in enumerate(_ORDER)}
_ALIGNMENT = 64
_METADATA = "__metadata__"
_OURS = "phlox"
SIGNS = (
    '"format":"safetensors"',
    '"crc32":"',
)  # marks of metadata that Phlox wrote; elsewhere in the file they mean damage
_AFTER_CHECKSUMS = '\\"}"}}'
"""The end of the header of a file without tensors: checksums are the last item of the inner JSON."""


class ArrayInfo(Header, frozen=True, kw_only=True, omit_defaults=True):
    """The header of a file of arrays, of this format or of NumPy's .npz, with everything of a record but the arrays."""

    metadata: dict[str, str] | None = None
    """None if the format stores it itself."""
    aliases: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    ids: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    values: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    order: list[int] | None = None
    """Entry i of the record is item `order[i]` of the tensors (in file order) followed by the values."""

    @classmethod
    def of_record(cls, record: Record, header: Header, stored: Iterable[str], **others: Any) -> Self:
        """The header of a record whose tensors are `stored` in this order; `others` are fields of a subclass."""
        position = {path: i for i, path in enumerate([*stored, *record.values])}
        order = [position[path] for path in record]
        return cls(
            **msgspec.structs.asdict(header),
            aliases=dict(record.aliases),
            ids={path: entry.id for path, entry in record.tensors.items() if entry.id is not None},
            values={path: to_json(value) for path, value in record.values.items()},
            order=None if order == sorted(order) else order,
            **others,
        )

    def entries(self, tensors: Mapping[str, LazyTensor]) -> dict[str, TensorEntry | Value]:
        """The entries of the record, from its tensors in file order; RecordError if the two do not fit together."""
        if unknown := self.ids.keys() - tensors.keys():
            raise RecordError(f"it has an id for {min(unknown)!r}, which is not one of its tensors")
        if duplicates := self.values.keys() & tensors.keys():
            raise RecordError(f"{min(duplicates)!r} is both a tensor and a value")
        items: list[tuple[str, TensorEntry | Value]] = [
            (p, TensorEntry(tensor, self.ids.get(p))) for p, tensor in tensors.items()
        ]
        items += [(path, from_json(value)) for path, value in self.values.items()]
        if self.order is not None:
            if sorted(self.order) != list(range(len(items))):
                raise RecordError("its order of entries is not a permutation of them")
            items = [items[i] for i in self.order]
        return dict(items)


class SafetensorsInfo(ArrayInfo, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a record that safetensors lacks, as JSON in the metadata under "phlox"."""

    crc32: str | None = None
    """The checksums; empty in a compressed file, which has the checksums of the compression."""


@final
class SafetensorsRecorder(Recorder):
    """The safetensors format: readable by the `safetensors` library, and memory-mapped when loaded.

    >>> import numpy as np
    >>> recorder = SafetensorsRecorder()
    >>> recorder.from_bytes(recorder.to_bytes(Record({"weight": np.ones(3, np.float32), "step": 7}))).paths()
    ['weight', 'step']
    """

    format = "safetensors"
    suffix = ".safetensors"
    is_raw = True

    def write(self, record: Record, sink: Sink) -> None:
        """See `Recorder.write`. RecordError for an entry or metadata with a reserved name."""
        for reserved, names in ((_METADATA, record.tensors), (_OURS, record.metadata)):
            if reserved in names:
                raise RecordError(f"the name {reserved!r} is reserved in safetensors; choose another")
        tensors = sorted(record.tensors.items(), key=lambda item: (_RANK[item[1].tensor.dtype], item[0]))
        own = self.header(record)
        room = "0" * (2 * WIDTH * (len(record) + 1)) if sink.can_patch else ""
        paths = [path for path, _ in tensors]
        parts = SafetensorsInfo.of_record(record, own, paths, crc32=room)
        info = json.dumps(msgspec.to_builtins(parts), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        plain = str.__str__  # also for subclasses of str, which only the encoder of `json` accepts
        metadata = {plain(name): plain(text) for name, text in record.metadata.items()}
        header: dict[str, Any] = {_METADATA: {**metadata, _OURS: info}}
        position = 8 + len(msgspec.json.encode(header)) - len(_AFTER_CHECKSUMS)
        end = 0
        for path, entry in tensors:
            tensor = entry.tensor
            start, end = end, end + tensor.nbytes
            header[path] = {"dtype": _NAMES[tensor.dtype], "shape": tensor.shape, "data_offsets": (start, end)}
        text = msgspec.json.encode(header)
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        check_json(text)
        check_json(info.encode())
        sink.write(len(text).to_bytes(8, "little") + text)
        sums = sink.tensors([(entry.tensor, start_of(path, entry)) for path, entry in tensors])
        if sink.can_patch:
            by_path = dict(zip(paths, sums, strict=True))
            sink.patch(position - len(room), packed(record, own, by_path).hex().encode())

    def read(self, source: Source) -> Record:
        """See `Recorder.read`. Rejects everything that the reference implementation rejects, and duplicate names."""
        text, data_start = _header(source.data)
        header = _loads(text)
        metadata = _text_by_name(header.pop(_METADATA, None))
        if len(header) > limits.MAX_ENTRIES:
            check_entries(len(header))
        spans: list[tuple[int, int]] = []
        tensors: dict[str, LazyTensor] = {}
        unreadable: dict[str, str] = {}
        for path, stored in _described(header).items():
            start, stop = stored.data_offsets
            spans.append((start, stop))
            if stored.dtype not in _DTYPES:
                if not _TYPE.fullmatch(stored.dtype):
                    raise RecordError(f"{path}: {stored.dtype[:40]!r} is not an element type")
                unreadable[path] = (
                    f"{stored.dtype[:40]!r} is not an element type of a record ({', '.join(_DTYPES)})"
                    f"{_REMEDIES.get(stored.dtype, '')}"
                )
                continue
            dtype = _DTYPES[stored.dtype]
            tensors[path] = source.tensor(path, dtype, stored.shape, data_start + start, data_start + stop)
        _check_cover(spans, len(source.data) - data_start)
        ours = metadata.pop(_OURS, None)
        if ours is None and any(sign in name or sign in text for name, text in metadata.items() for sign in SIGNS):
            raise RecordError(f"its metadata has the data of Phlox, but not under {_OURS!r}: the file is damaged")
        if ours is None:
            return _foreign_record(tensors, metadata, unreadable)
        for path, why in unreadable.items():  # Phlox never writes these
            raise RecordError(f"{path}: {why}")
        return _restored(tensors, metadata, ours, source)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Recorder.recognises`."""
        return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_TEXT


_DTYPES = {name.upper(): dtype for name, dtype in DTYPES.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_TYPE = re.compile(r"[A-Z]{1,8}[0-9]{1,3}(_[A-Z0-9]{1,12})?")
"""The pattern of dtype names that the format has, or may have in future."""
_REMEDIES = {"C64": "; save its real and imaginary parts, as torch.view_as_real gives them"}


def _foreign_record(tensors: dict[str, LazyTensor], metadata: dict[str, str], unreadable: dict[str, str]) -> Record:
    aliases = _shared(tensors, metadata)
    try:
        return Record(tensors, metadata, aliases=aliases, unreadable=unreadable)
    except RecordError:  # checked only here, since nearly all names are valid paths
        for path in list(tensors):
            if (why := _not_a_path(path)) is not None:
                del tensors[path]
                unreadable[path] = why
    return Record(tensors, metadata, aliases=_shared(tensors, metadata), unreadable=unreadable)


def _shared(tensors: dict[str, LazyTensor], metadata: dict[str, str]) -> dict[str, str]:
    """The other names of shared tensors, which `save_model` of safetensors keeps in the metadata."""
    shared = {name: text for name, text in metadata.items() if text in tensors and name not in tensors}
    return {name: text for name, text in shared.items() if name != "format" and _not_a_path(name) is None}


def _not_a_path(name: str) -> str | None:
    try:
        check_name(name)
    except UnreadableEntryError as error:
        return str(error)
    return None


def _header(data: memoryview) -> tuple[str, int]:
    if len(data) < 8:
        raise RecordError(f"it has {len(data)} bytes, too few for a header")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_TEXT:
        raise RecordError(f"it claims a header of {length} bytes; the most is {MAX_TEXT}")
    if length > len(data) - 8:
        raise RecordError(f"it claims a header of {length} bytes and has {len(data) - 8} after its length; truncated?")
    if length > min(limits.MAX_ITEMS, limits.MAX_TEXT):  # an item takes a byte at least
        check_json(data[8 : 8 + length])
    return str(data[8 : 8 + length], "utf-8"), 8 + length


def _restored(tensors: dict[str, LazyTensor], metadata: dict[str, str], ours: str, source: Source) -> Record:
    if 4 * len(ours) > min(limits.MAX_ITEMS, limits.MAX_TEXT):  # a character takes up to four bytes in UTF-8
        check_json(ours.encode())
    info = msgspec.json.decode(ours, type=SafetensorsInfo)
    if info.schema != SCHEMA or info.format != SafetensorsRecorder.format:
        info.check(SafetensorsRecorder.format)
    if len(tensors) + len(info.values) > limits.MAX_ENTRIES:
        check_entries(len(tensors) + len(info.values))
    entries = info.entries({p: tensors[p] for _, p in sorted([(_RANK[t.dtype], p) for p, t in tensors.items()])})
    if info.crc32 == "":
        return Record(entries, metadata, aliases=info.aliases, positional=info.positional, header=info)
    sums = None if info.crc32 is None else bytes.fromhex(info.crc32)
    return verified(entries, info, metadata, info.aliases, sums, source)


def _text_by_name(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise RecordError("its metadata is not text by name")
    for text in cast("dict[str, Any]", metadata).values():
        if not isinstance(text, str):
            raise RecordError("its metadata is not text by name")
    return cast("dict[str, str]", metadata)


class _Stored(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The header's description of one tensor."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _described(header: dict[str, Any]) -> dict[str, _Stored]:
    try:
        return msgspec.convert(header, dict[str, _Stored])
    except msgspec.ValidationError:
        path = next(path for path, item in header.items() if not _is_description(item))
        raise RecordError(
            f"{path}: expected a dtype, a shape and data_offsets of two whole numbers, and nothing else"
        ) from None


def _is_description(item: object) -> bool:
    try:
        msgspec.convert(item, _Stored)
    except msgspec.ValidationError:
        return False
    return True


def _check_cover(spans: list[tuple[int, int]], size: int) -> None:
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            raise RecordError(f"its tensors {'overlap' if start < end else 'leave a hole'} at byte {min(start, end)}")
        end = stop
    if end != size:
        raise RecordError(f"its tensors take {end} bytes of {size}; the rest belongs to none")


def _loads(text: str) -> dict[str, Any]:
    header = _as_written(text)
    if header is None:
        parse_int = _natural if "-" in text else None  # without a callback the JSON library parses integers faster
        header = json.loads(text, object_pairs_hook=_unique, parse_int=parse_int, parse_constant=_no_constant)
    if not isinstance(header, dict):
        raise RecordError("its header is not a JSON object")
    return header  # pyright: ignore[reportUnknownVariableType] -- keys of JSON objects are str


def _as_written(text: str) -> Any:
    """Parse a header that is byte-identical to its re-encoding, so has no duplicate names; None for others."""
    if "-" in text:  # perhaps a negative number
        return None
    try:
        header = msgspec.json.decode(text)
        return header if msgspec.json.encode(header) == text.rstrip().encode() else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        duplicate = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise RecordError(f"its header names {duplicate[:200]!r} twice")
    return result


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise RecordError("a size or offset in its header is negative")
    return int(digits)


def _no_constant(name: str) -> float:
    raise RecordError(f"its header holds {name}, which is not JSON")
