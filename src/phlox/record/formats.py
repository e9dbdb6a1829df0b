"""`load` and `save`, which find the format themselves: by the content of the file, by the end of its name."""

from __future__ import annotations

import itertools
from pathlib import Path

from phlox.errors import RecordError
from phlox.record.binary import BinaryRecorder
from phlox.record.compression import SUFFIXES, Compression
from phlox.record.files import find_file, is_file
from phlox.record.json import JsonRecorder
from phlox.record.message_pack import MessagePackRecorder
from phlox.record.precision import FULL, Precision
from phlox.record.reader import PathLike, Reader
from phlox.record.record import Record
from phlox.record.recorder import Recorder
from phlox.record.safetensors import SafetensorsRecorder
from phlox.record.source import open_source

RECORDERS: tuple[type[Recorder], ...] = (SafetensorsRecorder, MessagePackRecorder, BinaryRecorder, JsonRecorder)
"""The formats that Phlox writes and reads."""

READERS: tuple[type[Reader], ...] = (*RECORDERS,)
"""The formats that Phlox reads, in the order in which they are asked whether a file is theirs."""

HEAD = 512
"""How many bytes of a file a reader is shown to recognise it by."""


def load(path: PathLike, *, max_bytes: int | None = None) -> Record:
    """The record in a file of any format and compression, given with or without its suffix; mapped where it can be.

    Args:
        path: of the file.
        max_bytes: the most that a compressed file may unpack to; by default 64 times its size, or 1 GiB if that is
            more.

    Raises RecordError, naming file and reason, for a file that is missing, damaged, of no known format or of a newer
    schema, and where several files differ from `path` by their suffixes only.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = save(Record({"step": 7}), Path(folder) / "state", compression="gzip")
    ...     written.name, load(Path(folder) / "state")["step"]
    ('state.safetensors.gz', 7)
    """
    source = open_source(_find(Path(path)), max_bytes)
    return reader_of(bytes(source.data[:HEAD]), source.name).decode(source)


def reader_of(head: bytes, name: str) -> Reader:
    """A reader for a file of this name that begins with these bytes; RecordError where there is none."""
    # Where not even the beginning is right, the reader that the name promises tells best what is wrong.
    found = [reader for reader in READERS if reader.recognises(head)] or [r for r in READERS if r.has_ending(name)]
    if not found:
        names = ", ".join(reader.format for reader in READERS)
        raise RecordError(f"{name}: neither its content nor its name is that of a known format ({names})")
    return found[0]()


def save(
    record: Record,
    path: PathLike,
    precision: Precision = FULL,
    compression: Compression | None = None,
) -> Path:
    """Writes `record` in the format (and compression) that the end of `path` names, and gives the path of the file.

    A name without the suffix of a format gets that of safetensors, the default. See `Recorder.save`.
    """
    return recorder_for(path, precision, compression).save(record, path)


def recorder_for(path: PathLike, precision: Precision = FULL, compression: Compression | None = None) -> Recorder:
    """The recorder of the format and compression that the end of `path` names; safetensors where it names none."""
    name = Path(path).name
    for recorder in RECORDERS:
        for suffix in recorder.suffixes():
            for named, end in SUFFIXES.items():
                if name.endswith(suffix + end):
                    return recorder(precision, compression or named)
    return SafetensorsRecorder(precision, compression)


def _find(path: Path) -> Path:
    if not path.name or is_file(path) or any(reader.has_ending(path.name) for reader in READERS):
        return find_file([path])
    endings = [s + end for reader in READERS for s, end in itertools.product(reader.suffixes(), SUFFIXES.values())]
    siblings = [path.with_name(path.name + ending) for ending in endings]
    existing = [sibling for sibling in siblings if is_file(sibling)]
    if len(existing) > 1:
        names = ", ".join(sibling.name for sibling in existing)
        raise RecordError(f"{path}: which of {names} is meant? Give the name with its suffix")
    return find_file(existing or [path])
