"""`load` and `save` of any format: `load` detects it by content, `save` by the suffix of the name."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from phlox.errors import RecordError
from phlox.record.formats.binary import BinaryRecorder
from phlox.record.formats.json import JsonRecorder
from phlox.record.formats.message_pack import MessagePackRecorder
from phlox.record.formats.reader import PathLike, Readable, Reader, Stream, is_path
from phlox.record.formats.recorder import Recorder
from phlox.record.formats.safetensors import SafetensorsRecorder
from phlox.record.io.compression import SUFFIXES, Compression
from phlox.record.io.files import find_file, is_file, is_folder
from phlox.record.io.source import Source, open_source, read_source
from phlox.record.precision import FULL, PrecisionLike
from phlox.record.record import Record

_OWN = (SafetensorsRecorder, MessagePackRecorder, BinaryRecorder)
"""Formats with unique first bytes: reading these imports no other format."""

if TYPE_CHECKING:
    RECORDERS: tuple[type[Recorder], ...]
    """The formats that Phlox writes and reads."""
    READERS: tuple[type[Reader], ...]
    """The formats that Phlox reads, in the order in which they are tried."""


def _recorders() -> tuple[type[Recorder], ...]:
    from phlox.record.formats.gguf import GgufRecorder
    from phlox.record.formats.npz import NpzRecorder

    return (*_OWN, JsonRecorder, NpzRecorder, GgufRecorder)


def _readers() -> tuple[type[Reader], ...]:
    from phlox.record.formats.flax import FlaxReader
    from phlox.record.formats.npz import NpyReader
    from phlox.record.formats.parts import PartsReader
    from phlox.record.formats.pickle import PickleReader
    from phlox.record.formats.pytorch import PyTorchReader
    from phlox.record.formats.sharded import ShardedReader

    return (ShardedReader, PartsReader, *_recorders(), PyTorchReader, NpyReader, FlaxReader, PickleReader)


def __getattr__(name: str) -> Any:
    if name == "RECORDERS":
        return _recorders()
    if name == "READERS":
        return _readers()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


HEAD = 512
"""The number of bytes by which a reader recognises a file."""


def load(source: PathLike | Readable, *, max_bytes: int | None = None, verify: bool = True) -> Record:
    """Load a record from a file of any format and compression; memory-mapped if possible.

    Args:
        source: the path of the file, with or without its suffix; the path of a folder, either of one Hugging Face
            model, in one file or in shards, or of `phlox.distributed.save`, whose newest step is read; or the content:
            bytes, or an open binary file, which is read from its position to its end.
        max_bytes: the maximum unpacked size of a compressed file; by default 64 times its size, or 1 GiB if that is
            more.
        verify: verify checksums, if the file has them: for values and metadata at once, for a tensor on its
            first read.

    Raises RecordError, naming file and reason, if a file is missing or damaged, has an unknown format or a newer
    schema, or if several files differ from `source` only by their suffixes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = save(Record({"step": 7}), Path(folder) / "state", compression="gzip")
    ...     written.name, load(Path(folder) / "state")["step"], load(written.read_bytes())["step"]
    ('state.safetensors.gz', 7, 7)
    """
    if is_path(source):
        opened = open_source(find(Path(source)), max_bytes, verify)
    else:
        opened = read_source(source, "a file in memory", max_bytes, verify)
    return reader_of(opened, max_bytes).decode(opened)


def reader_of(source: Source, max_bytes: int | None = None) -> Reader:
    """The reader of a file, by its first bytes or else by its name; RecordError if there is none."""
    kind = _kind_of(bytes(source.data[:HEAD]), source.name)
    return _reader(kind, max_bytes, source.verify) if kind in _OWN else kind(max_bytes=max_bytes, verify=source.verify)


@functools.lru_cache(maxsize=64)
def _reader(kind: type[Reader], max_bytes: int | None, verify: bool) -> Reader:
    return kind(max_bytes=max_bytes, verify=verify)


def _kind_of(head: bytes, name: str) -> type[Reader]:
    for own in _OWN:
        if own.recognises(head):
            return own
    readers = _readers()
    for reader in readers:
        if reader.recognises(head):
            return reader
    if not head:
        raise RecordError(f"{name}: it is empty")
    from phlox.record.formats.foreign import foreign_file

    if sentence := foreign_file(head, name):
        raise RecordError(f"{name}: Phlox cannot read it: {sentence}")
    # If the first bytes are unknown, the reader for the suffix gives the best error.
    by_suffix = next((reader for reader in readers if reader.has_ending(name)), None)
    if by_suffix is None or name.endswith(_OF_ANY):
        names = ", ".join(dict.fromkeys(reader.format for reader in readers))
        raise RecordError(
            f"{name}: its content has no format that Phlox knows ({names}); if it is raw numbers, "
            "numpy.fromfile reads them, and numpy.savez saves them by name"
        )
    return by_suffix


_OF_ANY = (".bin", ".ckpt")
"""Suffixes that many formats share, and so identify none."""


@overload
def save(
    record: Record,
    path: PathLike,
    precision: PrecisionLike = FULL,
    compression: Compression | None = None,
    *,
    durable: bool = True,
) -> Path: ...
@overload
def save(
    record: Record,
    path: Stream,
    precision: PrecisionLike = FULL,
    compression: Compression | None = None,
    *,
    durable: bool = True,
) -> Stream: ...
def save(
    record: Record,
    path: PathLike | Stream,
    precision: PrecisionLike = FULL,
    compression: Compression | None = None,
    *,
    durable: bool = True,
) -> Path | Stream:
    """Save `record` in the format and compression that the suffix of `path` names; returns the path of the file.

    A path without the suffix of a format gets the one of safetensors, the default. Raises RecordError, with the remedy,
    for the suffix of a format that Phlox does not write. `path` can be a binary file open for writing, which is
    returned. See `Recorder.save` for errors and warnings, and `Recorder` for `precision` and `durable`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Record({"step": 7}), Path(folder) / "state.json").name
    'state.json'
    """
    if is_path(path):
        return recorder_for(path, precision, compression, durable=durable).save(record, path)
    named = getattr(path, "name", None)
    recorder = recorder_for(named if isinstance(named, str) else "", precision, compression, durable=durable)
    return recorder.save(record, path)


def recorder_for(
    path: PathLike, precision: PrecisionLike = FULL, compression: Compression | None = None, *, durable: bool = True
) -> Recorder:
    """The recorder for the suffix of `path`: its format and compression; safetensors by default.

    Raises RecordError for the suffix of a format that Phlox only reads, or does not know: `load` would not find the
    file under that name, and other programs could not read it as that format.
    """
    name = Path(path).name
    if "." not in name:
        return SafetensorsRecorder(precision, compression, durable=durable)
    for recorder in _recorders():
        for suffix in recorder.suffixes():
            for named, end in SUFFIXES.items():
                if name.endswith(suffix + end):
                    return recorder(precision, compression or named, durable=durable)
    from phlox.record.formats.foreign import format_of_suffix

    by_suffix = next((reader.format for reader in _readers() if reader.has_ending(name)), None)
    if by_suffix is None and (foreign := format_of_suffix(name)) is not None:
        by_suffix = foreign.what
    if by_suffix is not None:
        ends = ", ".join(recorder.suffix for recorder in _recorders())
        raise RecordError(
            f"cannot save {path}: Phlox writes no such file ({by_suffix}); give it one of the ends {ends}, and load it "
            "in PyTorch with safetensors.torch.load_file, in JAX with safetensors.flax.load_file"
        )
    return SafetensorsRecorder(precision, compression, durable=durable)


def find(path: Path) -> Path:
    """The file that `load` reads for a path that may lack its suffix; RecordError if there is none, or several."""
    if path.name and is_file(path):
        return path
    readers = _readers()
    if not path.name:
        return _find_in_folder(path) if path.is_dir() else find_file([path])
    endings = dict.fromkeys(
        s + end for reader in readers for s, end in itertools.product(reader.suffixes(), SUFFIXES.values())
    )
    siblings = [path.with_name(path.name + ending) for ending in endings]
    existing = [sibling for sibling in siblings if is_file(sibling)]
    if len(existing) > 1:
        names = ", ".join(sibling.name for sibling in existing)
        raise RecordError(f"{path}: which of {names} is meant? Give the name with its suffix")
    return find_file(existing or [_find_in_folder(path) if is_folder(path) else path])


def _find_in_folder(folder: Path) -> Path:
    from phlox.record.formats.parts import find_index
    from phlox.record.formats.sharded import find_in_folder

    return find_index(folder) or find_in_folder(folder)
