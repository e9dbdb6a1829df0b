"""Files of `torch.save`: state dicts of PyTorch, read without PyTorch and without running code.

Since 1.6 such a file is a zip archive with the members `<name>/data.pkl`, a pickle, and `<name>/data/<key>`, the raw
elements of each storage, uncompressed. Before (and with `_use_new_zipfile_serialization=False`) it is five pickles,
followed by the storages, each with its number of elements (PyTorch, `torch/serialization.py`). The pickle is read by an
inert interpreter that can build only plain data, see `machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast, final

import msgspec
import numpy as np

from phlox.errors import RecordError
from phlox.host.text import shown
from phlox.record.dtypes import Array, DType, checked_shape
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.foreign import foreign_file
from phlox.record.formats.pytorch.flatten import flatten
from phlox.record.formats.pytorch.globals import find_global
from phlox.record.formats.pytorch.machine import Machine
from phlox.record.formats.pytorch.values import (
    ElementType,
    ForeignGlobal,
    Object,
    Pairs,
    Storage,
    Strided,
    WorkBudget,
)
from phlox.record.formats.reader import Reader
from phlox.record.io.compression import unpack_limit
from phlox.record.io.source import Source, elements
from phlox.record.io.zip import Archive, first_name
from phlox.record.record import Entry, Record

_MAGIC = 0x1950A86A20F9469CFC6C
_MAGIC_PICKLES = (b"\x8a\x0a" + _MAGIC.to_bytes(10, "little") + b".", b"L119547037146038801333356L\n.")
_PROTOCOL = 1001
_OF_ARCHIVES = ("data.pkl", "version", "byteorder", "constants.pkl", ".format_version")
_PARTS_OF_TAR = (b"sys_info\0", b"pickle\0", b"storages\0", b"tensors\0")
CONSTANTS = "constants"
"""The path prefix of the constants in a program's code."""
_MAX_PICKLE = 1 << 26  # bytes, if the file does not give the size, or cannot be trusted


@final
class PyTorchReader(Reader):
    """Reads files of `torch.save`, of any version since 0.4: state dicts, and checkpoints of them and plain values.

    Dicts become paths: {"model": state_dict, "epoch": 3, "optimizer": optimizer.state_dict()} has "model.0.weight",
    "epoch", "optimizer.state.0.exp_avg". A list without tensors is one plain value. A single saved tensor is called
    "data". Tensors that are the same view of one storage are aliases of the first. Devices are ignored.

    Whole modules and TorchScript programs are read as their state dicts: parameters and buffers, and, for a program,
    the constants of its code as "constants.0", ... and the metadata {"format": "torchscript"}.

    No code of the file is run. Objects of other classes, and tensors that a record cannot hold (complex, quantized,
    sparse), are `Record.unreadable`, with the remedy. Raises RecordError if a file tries to access the system, as
    attacks do. Tensors are views of the mapped file, checked against the size of their storage. `max_bytes` also limits
    the total size of expanded tensors. The checksum of a storage is verified on its first read.

    >>> import io, zipfile
    >>> pickle = b"\\x80\\x02}X\\x05\\x00\\x00\\x00epochK\\x03s."  # of {"epoch": 3}
    >>> file = io.BytesIO()
    >>> with zipfile.ZipFile(file, "w") as archive:
    ...     archive.writestr("archive/data.pkl", pickle)
    >>> PyTorchReader().from_bytes(file.getvalue())["epoch"]
    3
    """

    format = "pytorch"
    suffix = ".pt"
    other_suffixes = (".pth", ".bin", ".ckpt")

    def read(self, source: Source) -> Record:
        """See `Reader.read`."""
        head = bytes(source.data[:512])
        if head.startswith(b"PK"):
            return _from_zip(source, self.max_bytes)
        if _is_tar(head):
            raise RecordError("it is a tar archive of PyTorch before 0.4; load it with torch and save it anew")
        budget = budget_for(min(len(source.data), _MAX_PICKLE))
        root, files = _from_legacy(source.data, budget)
        return as_record(source, root, budget, self.max_bytes, files)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Reader.recognises`."""
        name = first_name(head)
        if name is not None:
            parts = name.split("/")
            return len(parts) > 1 and (parts[-1] in _OF_ARCHIVES or parts[1] in ("data", "code", ".data"))
        return any(magic in head[:48] for magic in _MAGIC_PICKLES) or _is_tar(head)


class _Files:
    """Access to the storages: their sizes by key, how to read them, and the cost of unpacking."""

    def __init__(
        self,
        size: Callable[[str], int],
        read: Callable[[str], memoryview],
        cost: Callable[[str], int] = lambda key: 0,
        big_endian: bool = False,
    ) -> None:
        self.size = size
        self.read = read
        self.cost = cost
        self.big_endian = big_endian


def _no_storage(key: str) -> Any:
    raise RecordError(f"it has no storage {shown(key)!r}")


_NO_FILES = _Files(_no_storage, _no_storage)


def as_record(
    source: Source,
    root: object,
    budget: WorkBudget,
    max_bytes: int | None,
    files: _Files = _NO_FILES,
    metadata: Mapping[str, str] | None = None,
) -> Record:
    """The record of an inert pickle; `files` has the storages, except those that tensors hold themselves."""
    limit = max(unpack_limit(len(source.data), max_bytes), len(source.data))
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    seen: dict[object, str] = {}
    total = 0
    leaves, unreadable = flatten(root, budget)
    for path, leaf in leaves.items():
        if isinstance(leaf, np.ndarray):
            entries[path] = TensorEntry(LazyTensor.from_array(leaf, path))
        elif isinstance(leaf, LazyTensor):
            entries[path] = TensorEntry(msgspec.structs.replace(leaf, path=path))
        elif isinstance(leaf, Strided):
            tensor, view = _lazy(source, files, leaf, path)
            if seen.setdefault(view, path) != path:
                aliases[path] = seen[view]
                continue
            entries[path] = TensorEntry(tensor)
            total += max(tensor.nbytes, files.cost(leaf.storage.key) if leaf.storage.data is None else 0)
            if total > limit:
                raise RecordError(
                    f"{shown(path)}: its {len(source.data)} bytes expand to more than {limit}, as those of a bomb "
                    "do; if it is to be trusted, give the reader or `load` a larger max_bytes"
                )
        else:
            entries[path] = leaf
    return Record(entries, metadata, aliases=aliases, unreadable=unreadable)


def _from_zip(source: Source, max_bytes: int | None) -> Record:
    archive = Archive(source.data, max_bytes, verify=source.verify)
    names = archive.names()
    roots = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if any(name.endswith("/archive_format") for name in names):
        raise RecordError(foreign_file(b"", "program.pt2"))
    if len(roots) != 1:
        if any("/code/" in name or name.endswith("/model.json") for name in names):
            raise RecordError(
                "it is a TorchScript program of PyTorch before 1.4; load it with torch.jit.load where you trust it, "
                "and save its state_dict()"
            )
        raise RecordError(f"it has {len(roots)} members <name>/data.pkl, where torch.save writes one")
    root = roots[0]

    def member(key: str) -> str:
        return f"{root}{key}"

    def cost(key: str) -> int:
        return archive.size(member(key)) if archive.is_deflated(member(key)) else 0

    order = bytes(archive.read(root + "byteorder")) if root + "byteorder" in archive else b"little"
    if order.strip() not in (b"little", b"big"):
        raise RecordError(f"its byte order is {order[:20]!r}, where little or big was expected")
    # The tensors of a program are in two folders, next to their pickles: attributes, and constants of the code.
    pickles = {part: f"{root}{part}.pkl" for part in ("data", "constants") if f"{root}{part}.pkl" in archive}
    for name in pickles.values():
        if archive.is_deflated(name) and archive.size(name) > _MAX_PICKLE:
            raise RecordError(
                f"its pickle unpacks to more than {_MAX_PICKLE} bytes; torch.save does not compress it at all"
            )
    texts = {part: archive.read(name) for part, name in pickles.items()}
    budget = budget_for(sum(map(len, texts.values())))
    files = _Files(
        lambda key: archive.size(member(key)), lambda key: archive.read(member(key)), cost, order.strip() == b"big"
    )
    values: dict[str, object] = {}
    for part, text in texts.items():
        machine = Machine(text, find_global, partial(_storage_in, part), budget)
        values[part] = machine.load()
        if machine.at != len(text):
            raise RecordError(f"{len(text) - machine.at} bytes follow its pickle")
    data, constants = values["data"], values.get("constants")
    if isinstance(constants, tuple) and constants and isinstance(data, Object):
        attributes = data.state.items if isinstance(data.state, Pairs) else []
        data = Object(data.name, Pairs([*attributes, (CONSTANTS, constants)]))
    metadata = {"format": "torchscript"} if "constants" in values else {}
    return as_record(source, data, budget, max_bytes, files, metadata)


def _storage_in(folder: str, value: object) -> Storage:
    storage = _persistent(value)
    return replace(storage, key=f"{folder}/{storage.key}")


def storage_in(data: bytes, budget: WorkBudget) -> Storage:
    """The storage in a nested `torch.save` file, as in a pickle that was not written by `torch.save`."""
    root, files = _from_legacy(memoryview(data), budget)
    if not isinstance(root, Storage):
        raise RecordError("a storage was expected")
    return replace(root, data=files.read(root.key))


def _from_legacy(data: memoryview, budget: WorkBudget) -> tuple[object, _Files]:
    plain = Machine(data, None, None, budget)
    if not any(magic in data[:48].tobytes() for magic in _MAGIC_PICKLES) or plain.load() != _MAGIC:
        raise RecordError("it does not begin like a file of torch.save")
    if (version := plain.load()) != _PROTOCOL:
        raise RecordError(f"it has version {str(version)[:20]} of the legacy format, where {_PROTOCOL} was expected")
    if not isinstance(plain.load(), Pairs):
        raise RecordError("its data about the machine that wrote it is not a dict")
    types: dict[str, ElementType] = {}

    def persistent(value: object) -> object:
        match value:
            case ("module", ForeignGlobal() as cls, str() | None, str() | None):  # a module class, and its source code
                return cls
            case _:
                pass
        storage = _persistent(value)
        if types.setdefault(storage.key, storage.type) is not storage.type:
            raise RecordError(f"the storage {shown(storage.key)!r} is of two types")
        return storage

    machine = Machine(data, find_global, persistent, budget, plain.at)
    root = machine.load()
    plain.at = machine.at
    keys = plain.load()
    positions: dict[str, tuple[int, int]] = {}
    at = plain.at
    for key in cast("list[object]", keys) if isinstance(keys, list) else [None]:
        if not isinstance(key, str) or key not in types or key in positions:
            raise RecordError("its list of storages does not match its tensors")
        size = int.from_bytes(data[at : at + 8], "little") * types[key].itemsize
        at += 8
        if at + size > len(data):
            raise RecordError(f"it ends within its storage {shown(key)!r} of {size} bytes; truncated?")
        positions[key] = (at, size)
        at += size
    if at != len(data):
        raise RecordError(f"{len(data) - at} bytes follow its last storage")

    def position(key: str) -> tuple[int, int]:
        if key not in positions:
            raise RecordError(f"it has no storage {shown(key)!r}")
        return positions[key]

    def read(key: str) -> memoryview:
        start, size = position(key)
        return data[start : start + size]

    return root, _Files(lambda key: position(key)[1], read)


def budget_for(size: int) -> WorkBudget:
    """The cost limit for pickles of so many bytes."""
    return WorkBudget(8 * size + 100_000)


def _persistent(value: object) -> Storage:
    """The storage of a persistent id, in the zip format or the legacy format, which also has views."""
    match value:
        case ("storage", ElementType() as kind, str(key), str(), int(size)) if size >= 0:
            return Storage(kind, key, size)
        case ("storage", ElementType() as kind, str(key), str(), int(size), None) if size >= 0:
            return Storage(kind, key, size)
        case ("storage", ElementType() as kind, str(key), str(), int(size), (str(), int(offset), int(length))) if (
            0 <= offset <= offset + length <= size
        ):
            return Storage(kind, key, length, offset)
        case _:
            pass
    raise RecordError("a persistent id that is not a storage of PyTorch; it may be an attack")


def _lazy(source: Source, files: _Files, view: Strided, path: str) -> tuple[LazyTensor, object]:
    """The tensor of a view, and its identity, for finding aliases."""
    storage, dtype = view.storage, cast("DType", view.type.dtype)
    shape = checked_shape(view.shape, dtype, path)
    strides, offset = _naturals(view.strides), _naturals((view.offset,))
    if strides is None or offset is None or len(strides) != len(shape):
        raise RecordError(
            f"{shown(path)}: its strides and offset are not whole numbers from 0, one stride for each axis"
        )
    begin = storage.offset * storage.type.itemsize
    end = begin + storage.size * storage.type.itemsize
    if end > (size := files.size(storage.key) if storage.data is None else len(storage.data)):
        raise RecordError(
            f"{shown(path)}: its storage {shown(storage.key)!r} is said to have {end} bytes and has {size}"
        )
    start = begin + offset[0] * dtype.itemsize
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    stop = start + (last + 1) * dtype.itemsize
    if 0 in shape:
        start = stop = begin
    if stop > end:
        raise RecordError(
            f"{shown(path)}: shape {shape} with strides {strides} from element {offset[0]} on leaves its storage of "
            f"{end - begin} bytes"
        )
    steps = tuple(stride * dtype.itemsize for stride in strides)

    def read() -> Array:
        if start == stop:
            return np.empty(shape, dtype)
        storage_bytes = files.read(storage.key) if storage.data is None else storage.data
        flat = elements(storage_bytes[start:stop], dtype)
        if files.big_endian:
            flat = flat.view(f"u{dtype.itemsize}").byteswap().view(dtype)
        return np.ndarray(shape, dtype, flat, 0, steps)  # checks the bounds once more

    key = storage.key if storage.data is None else id(storage.data)
    return source.lazy(path, dtype, shape, read), (key, start, dtype, shape, strides)


def _naturals(numbers: object) -> tuple[int, ...] | None:
    if not isinstance(numbers, (tuple, list)):
        return None
    result = tuple(cast("list[int]", numbers))
    return result if all(type(n) is int and 0 <= n < 2**63 for n in result) else None


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar" and head.startswith(_PARTS_OF_TAR)
