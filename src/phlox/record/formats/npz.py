"""NumPy's files: .npz, read and written, and .npy, read (NumPy, `numpy/lib/format.py`, "Format Version 1.0" to "3.0").

An .npz is a zip archive of .npy files, named by the path of a tensor and ".npy". Ours are uncompressed, each with its
data at a multiple of 64 bytes so that it can be memory-mapped. The first member is "__phlox__.json": the header and the
other parts of a record. `numpy.load` reads these files, and returns that member as bytes.

NumPy has no bfloat16. As in arrays of `ml_dtypes` that NumPy saves, the dtype is written as "<V2" and read back from
that; `numpy.load` returns an array to which `.view(ml_dtypes.bfloat16)` must be applied. Nothing else writes "<V2": raw
bytes of NumPy are "|V2".
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import msgspec
import numpy as np

from phlox.errors import RecordError
from phlox.record.dtypes import DTYPES, Array, DType, checked_shape, element_bytes
from phlox.record.entry import LazyTensor
from phlox.record.formats.reader import Reader
from phlox.record.formats.recorder import Recorder
from phlox.record.formats.safetensors import ArrayInfo
from phlox.record.io.sink import Sink
from phlox.record.io.source import Source, elements
from phlox.record.io.zip import Archive, first_name, is_safe_name
from phlox.record.limits import MAX_TEXT, check_entries
from phlox.record.record import Record, UnreadableEntryError, check_name

_OURS = "__phlox__.json"
_NPY = ".npy"
_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # NumPy's own limit
_BFLOAT16 = "<V2"
_ALIGNMENT = 64
_ALONE = "data"
"""The name of the tensor of an .npy file."""
_PADDING = struct.Struct("<HH")  # an extra field: its id (Android's alignment field) and size
_LARGE = 1 << 30  # larger members are written with 64-bit sizes
_ZIP64_EXTRA = 20
_ITEM = re.compile(
    r"""\s*['"](descr|fortran_order|shape)['"]\s*:\s*(?:['"]([^'"]{0,20})['"]|(True|False)|\(([\d\s,L]*)\))\s*(,|$)\s*"""
)
_DTYPES = {dtype.str[1:]: dtype for name, dtype in DTYPES.items() if name != "bf16" and not name.startswith("f8")}
_KINDS = {
    "O": "Python objects (loading them runs code)",
    "U": "text",
    "S": "text",
    "c": "complex numbers",
    "V": "raw bytes",
    "M": "dates",
    "m": "spans of time",
}


@final
class NpzRecorder(Recorder):
    """NumPy's .npz: files of `numpy.savez` and `numpy.savez_compressed` are read lazily; ours can be memory-mapped.

    Arrays in Fortran order and any byte order are supported. Objects, text, complex numbers and structures are listed
    as unreadable. The archive's CRC-32 of an array is verified on its first read.

    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> np.savez(file, weight=np.ones((2, 3)), bias=np.zeros(3))
    >>> record = NpzRecorder().from_bytes(file.getvalue())
    >>> record.paths(), record["weight"].tensor.read().sum()
    (['weight', 'bias'], np.float64(6.0))
    >>> np.load(io.BytesIO(NpzRecorder().to_bytes(record)))["bias"]
    array([0., 0., 0.], dtype=float32)
    """

    format = "npz"
    suffix = ".npz"
    is_raw = True

    def write(self, record: Record, sink: Sink) -> None:
        """See `Recorder.write`. RecordError for a path that is invalid in an archive: "/x", "../x", or with NUL."""
        with zipfile.ZipFile(_SinkFile(sink), "w") as archive:
            with _member(archive, sink, _OURS, 0) as file:
                info = ArrayInfo.of_record(record, self.header(record), record.tensors, metadata=dict(record.metadata))
                file.write(msgspec.json.encode(info))
            for path, entry in record.tensors.items():
                name = path + _NPY
                if entry.tensor.dtype.itemsize == 1 and entry.tensor.kind == "float":
                    raise RecordError(
                        f"{path}: NumPy has no {entry.tensor.dtype}; save it at another precision, such as HALF, or as "
                        "safetensors"
                    )
                if not is_safe_name(name) or len(name.encode()) >= 1 << 16:
                    raise RecordError(f"{path[:200]!r} can be no name in an .npz archive; rename it")
                header = _npy_header(entry.tensor)
                with _member(archive, sink, name, len(header) + entry.tensor.nbytes) as file:
                    file.write(header)
                    for block in entry.tensor.blocks():
                        file.write(element_bytes(block))

    def read(self, source: Source) -> Record:
        """See `Recorder.read`."""
        archive = Archive(source.data, self.max_bytes, verify=source.verify)
        tensors: dict[str, LazyTensor] = {}
        unreadable: dict[str, str] = {}
        names = [name for name in archive.names() if name != _OURS]
        if names and not any(name.endswith(_NPY) for name in names):
            raise RecordError(f"its member {names[0][:100]!r} is not an .npy file; is it another kind of zip archive?")
        for name in names:
            path = name.removesuffix(_NPY)
            try:
                if path == name:
                    raise UnreadableEntryError("it is not an .npy file")
                check_name(path)
                layout = _parsed(bytes(archive.head(name, _MAX_HEADER + 12)), archive.size(name), path)
            except UnreadableEntryError as error:
                unreadable[path] = str(error)
            else:
                tensors[path] = _lazy(source, path, layout, _reader(archive, name))
        if _OURS not in archive:
            return Record(tensors, unreadable=unreadable)
        for path, why in unreadable.items():  # Phlox never writes these
            raise RecordError(f"{path}: {why}")
        info = msgspec.json.decode(archive.read(_OURS), type=ArrayInfo)
        info.check(self.format)
        entries = info.entries(tensors)
        return Record(entries, info.metadata, aliases=info.aliases, positional=info.positional, header=info)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Reader.recognises`."""
        name = first_name(head)
        return name is not None and (name == _OURS or name.endswith(_NPY))


@final
class NpyReader(Reader):
    """NumPy's .npy: a record of one tensor, "data". Several concatenated files (Equinox): a positional record.

    One line of JSON may come first, where programs store hyper-parameters: it becomes the metadata "header".

    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(3))
    >>> NpyReader().from_bytes(file.getvalue())["data"].tensor.read()
    array([0, 1, 2])
    >>> np.save(file, np.ones((2, 2)))
    >>> NpyReader().from_bytes(file.getvalue()).positional
    True
    """

    format = "npy"
    suffix = ".npy"
    other_suffixes = (".eqx",)

    def read(self, source: Source) -> Record:
        """See `Reader.read`."""
        data, at, metadata = source.data, 0, {}
        if bytes(data[:1]) == b"{":
            line = bytes(data[:MAX_TEXT]).partition(b"\n")[0]
            at, metadata = len(line) + 1, {"header": line.decode()}
        tensors: dict[str, LazyTensor] = {}
        unreadable: dict[str, str] = {}
        while at < len(data) or not (tensors or unreadable):
            count = len(tensors) + len(unreadable)
            check_entries(count)
            path, part = str(count) if count or metadata else _ALONE, data[at:]
            if count and bytes(part[:6]) != _MAGIC:
                raise RecordError(f"{_ALONE}: {len(part)} bytes follow array {count}, which are not another one")
            try:
                layout = _parsed(bytes(part[: _MAX_HEADER + 12]), None, path)
            except UnreadableEntryError as error:
                unreadable[path] = str(error)
                size = _size(part)
                if size is None or size > len(part):  # the end of pickled Python objects is unknown
                    unreadable[path] += "" if path == _ALONE else "; the arrays after it cannot be located"
                    break
            else:
                size = layout.start + math.prod(layout.shape) * layout.dtype.itemsize
                if size > len(part):
                    needed, have = size - layout.start, len(part) - layout.start
                    raise RecordError(
                        f"{path}: {layout.dtype} of shape {layout.shape} takes {needed} bytes; the file gives {have}"
                    )
                tensors[path] = _lazy(source, path, layout, _view(part[:size]))
            at += size
        if len(tensors) + len(unreadable) == 1 and not metadata:
            return Record(tensors, unreadable=unreadable)
        named = {"0" if path == _ALONE else path: tensor for path, tensor in tensors.items()}
        lost = {"0" if path == _ALONE else path: why for path, why in unreadable.items()}
        return Record(named, metadata, positional=not lost, unreadable=lost)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Reader.recognises`."""
        return head.startswith(_MAGIC) or (head[:1] == b"{" and b"\n" + _MAGIC in head)


def _view(data: memoryview) -> Callable[[], memoryview]:
    return lambda: data


def _size(data: memoryview) -> int | None:
    """The size in bytes of an .npy file with unsupported elements; None if its header does not determine it."""
    head = bytes(data[: _MAX_HEADER + 12])
    width = {1: 2, 2: 4, 3: 4}[head[6]]
    start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    pattern = rb"'descr':\s*'[<>|=]?([cSUVMmf])(\d{1,9})[^']{0,20}'.*'shape':\s*\(([\d\s,]*)\)"
    if (match := re.search(pattern, head[:start])) is None:
        return None
    itemsize = int(match[2]) * (4 if match[1] == b"U" else 1)
    return start + itemsize * math.prod(_sizes(match[3].decode(), "shape"))


@dataclass(frozen=True, slots=True)
class _ArrayLayout:
    dtype: DType
    big_endian: bool
    shape: tuple[int, ...]
    is_fortran: bool
    start: int


def _parsed(head: bytes, size: int | None, path: str) -> _ArrayLayout:
    """Parse the header of an .npy file; RecordError if a file of `size` bytes cannot have it.

    Raises UnreadableEntryError for elements that a record cannot hold.
    """
    width = {1: 2, 2: 4, 3: 4}.get(head[6] if len(head) > 6 else 0, 0)
    if not head.startswith(_MAGIC) or not width or head[7:8] != b"\0":
        raise RecordError(f"{path}: it does not begin as an .npy file")
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = 8 + width + length
    if length > _MAX_HEADER or start > len(head):
        raise RecordError(
            f"{path}: it claims a header of {length} bytes, of {size or len(head)} in all and at most {_MAX_HEADER}"
        )
    items = _items(head[8 + width : start].decode("latin-1"), path)
    dtype, big_endian = _dtype(items["descr"], path)
    shape = checked_shape(_sizes(items["shape"], path), dtype, path)
    needed = math.prod(shape) * dtype.itemsize
    if size is not None and start + needed != size:
        raise RecordError(f"{path}: {dtype} of shape {shape} takes {needed} bytes; the file gives {size - start}")
    return _ArrayLayout(dtype, big_endian, shape, items["fortran_order"] == "True", start)


def _items(text: str, path: str) -> dict[str, str]:
    text = text.strip()
    items: dict[str, str] = {}
    body, at = text[1:-1].rstrip(), 0
    while match := _ITEM.match(body, at):
        name, quoted, truth, sizes, _ = match.groups()
        value = {"descr": quoted, "fortran_order": truth, "shape": sizes}[name]
        if value is None or name in items:
            break
        items[name] = value
        at = match.end()
        if at == len(body):
            break
    if text[:1] != "{" or text[-1:] != "}" or at != len(body) or len(items) != 3:
        if re.search(r"""['"]descr['"]\s*:\s*[\[(]""", text):
            raise UnreadableEntryError("a structured array, which a record cannot hold; save its fields one by one")
        raise RecordError(f"{path}: its header is not the header of an .npy file: {text[:100]!r}")
    return items


def _sizes(text: str, path: str) -> list[int]:
    digits = [part.strip().removesuffix("L") for part in text.split(",") if part.strip()]
    if not all(part.isdigit() and len(part) < 20 for part in digits):
        raise RecordError(f"{path}: {text[:100]!r} is not a shape")
    return [int(part) for part in digits]


def _dtype(text: str, path: str) -> tuple[DType, bool]:
    if text == _BFLOAT16:
        return DTYPES["bf16"], False
    if text == "<f1":  # one dtype of `ml_dtypes`; its others have no name in such a file
        return DTYPES["f8_e5m2"], False
    if text[:1] in "<>|=" and text[1:] in _DTYPES:
        return _DTYPES[text[1:]], text[0] == ">"
    kind = _KINDS.get(text.lstrip("<>|=")[:1], "elements")
    raise UnreadableEntryError(
        f"{kind} of NumPy's type {text!r}; a record holds {', '.join(DTYPES)}. Convert it before saving"
    )


def _lazy(source: Source, path: str, layout: _ArrayLayout, read: Callable[[], memoryview]) -> LazyTensor:
    dtype, shape = layout.dtype, layout.shape

    def array() -> Array:
        flat = elements(read()[layout.start :], dtype)
        if layout.big_endian:
            flat = flat.view(f"u{dtype.itemsize}").byteswap().view(dtype)
        return flat.reshape(shape, order="F" if layout.is_fortran else "C")

    return source.lazy(path, dtype, shape, array)


def _reader(archive: Archive, name: str) -> Callable[[], memoryview]:
    return lambda: archive.read(name)


def _npy_header(tensor: LazyTensor) -> bytes:
    descr = _BFLOAT16 if tensor.dtype == DTYPES["bf16"] else tensor.dtype.newbyteorder("<").str
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": tensor.shape})
    return buffer.getvalue()


def _member(archive: zipfile.ZipFile, sink: Sink, name: str, size: int) -> Any:
    """A new member: uncompressed, without a date, with its data at a multiple of 64 bytes."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3  # the same bytes on every system
    is_large = size >= _LARGE
    before = sink.position + 30 + len(name.encode()) + _PADDING.size + is_large * _ZIP64_EXTRA
    padding = -before % _ALIGNMENT
    info.extra = _PADDING.pack(0xD935, padding) + bytes(padding)
    return archive.open(info, "w", force_zip64=is_large)


class _SinkFile(io.RawIOBase):
    """A sink as a file without seek."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._sink.write(data)
        return len(data)
