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
from phlox.record.record import Record
from phlox.record.recorder import PathLike, Recorder, open_source
from phlox.record.safetensors import SafetensorsRecorder

RECORDERS: tuple[type[Recorder], ...] = (SafetensorsRecorder, MessagePackRecorder, BinaryRecorder, JsonRecorder)
"""The formats that Phlox brings."""


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
    head = bytes(source.data[:64])
    for recorder in RECORDERS:
        if recorder.recognises(head):
            return _create(recorder).decode(source)
    # Not even the beginning is right: the reader that the name promises tells best what is wrong.
    for recorder in RECORDERS:
        if _has_ending(source.name, recorder):
            return _create(recorder).decode(source)
    names = ", ".join(recorder.format for recorder in RECORDERS)
    raise RecordError(f"{source.name}: neither its content nor its name is that of a known format ({names})")


def save(
    record: Record,
    path: PathLike,
    precision: Precision = FULL,
    compression: Compression | None = None,
) -> Path:
    """Writes `record` in the format (and compression) that the end of `path` names, and gives the path of the file.

    A name without the suffix of a format gets that of safetensors, the default. See `Recorder.save`.
    """
    path = Path(path)
    for recorder in RECORDERS:
        for named, ending in SUFFIXES.items():
            if path.name.endswith(recorder.suffix + ending):
                return _create(recorder, precision, compression or named).save(record, path)
    return SafetensorsRecorder(precision, compression).save(record, path)


def _create(recorder: type[Recorder], precision: Precision = FULL, compression: Compression | None = None) -> Recorder:
    return recorder(precision, compression)


def _find(path: Path) -> Path:
    if not path.name or is_file(path) or any(_has_ending(path.name, recorder) for recorder in RECORDERS):
        return find_file([path])
    endings = [r.suffix + end for r, end in itertools.product(RECORDERS, SUFFIXES.values())]
    siblings = [path.with_name(path.name + ending) for ending in endings]
    existing = [sibling for sibling in siblings if is_file(sibling)]
    if len(existing) > 1:
        names = ", ".join(sibling.name for sibling in existing)
        raise RecordError(f"{path}: which of {names} is meant? Give the name with its suffix")
    return find_file(existing or [path])


def _has_ending(name: str, recorder: type[Recorder]) -> bool:
    return name.endswith(tuple(recorder.suffix + end for end in SUFFIXES.values()))
