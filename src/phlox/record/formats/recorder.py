"""`Recorder`: a format that can be written, at a precision and with compression."""

from __future__ import annotations

import contextlib
import io
from abc import abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import IO, ClassVar, overload

from phlox.errors import RecordError
from phlox.record.formats.reader import CanWrite, PathLike, Reader, Stream, is_path
from phlox.record.header import Header
from phlox.record.io.compression import SUFFIXES, Compression, compressed
from phlox.record.io.files import atomic_write, write_to
from phlox.record.io.sink import Sink
from phlox.record.limits import check_entries
from phlox.record.precision import FULL, PrecisionLike, Underflow, checked_precision, precision_label, warn_of_underflow
from phlox.record.record import Record


class Recorder(Reader):
    """Writes records to files or bytes in one format, and reads them back. A custom format is one short class:

    >>> import numpy as np
    >>> class NpyRecorder(Recorder):  # the tensor "data", and nothing else
    ...     format, suffix = "npy", ".npy"
    ...     def write(self, record, sink):
    ...         buffer = io.BytesIO()
    ...         np.save(buffer, record["data"].tensor.read())
    ...         sink.write(buffer.getvalue())
    ...     def read(self, source):
    ...         return Record({"data": np.load(io.BytesIO(source.data), allow_pickle=False)})
    >>> recorder = NpyRecorder(compression="gzip")
    >>> recorder.from_bytes(recorder.to_bytes(Record({"data": np.arange(3)})))["data"].tensor.read()
    array([0, 1, 2])

    Args:
        precision: the dtypes of written tensors (`FULL`: floats as float32). Reading does not change dtypes.
        compression: for writing: None, "gzip" or "zstd" (RecordError on use without the extra `zstd`). Reading
            detects it.
        durable: wait in `save` until the file is on the disk. False is faster, but a crash of the system (not of the
            program) may lose the file.
        max_bytes, verify: see `Reader`.
    """

    is_raw: ClassVar[bool] = False
    """Whether a file contains all elements unencoded: then disk space for them is preallocated."""
    has_room: ClassVar[bool] = False
    """Does the file take other bytes than the elements, which `room` counts?"""

    def __init__(
        self,
        precision: PrecisionLike = FULL,
        compression: Compression | None = None,
        *,
        durable: bool = True,
        max_bytes: int | None = None,
        verify: bool = True,
    ) -> None:
        super().__init__(max_bytes=max_bytes, verify=verify)
        self.durable = durable
        self.follows_links = True  # at the path of `save`, which the user has named
        if compression not in SUFFIXES:
            raise RecordError(f'compression={compression!r}: expected None, "gzip" or "zstd"')
        self.precision = checked_precision(precision)
        self.compression: Compression | None = compression

    @abstractmethod
    def write(self, record: Record, sink: Sink) -> None:
        """Write `record`, whose tensors have the right precision already, reading one tensor at a time."""

    @overload
    def save(self, record: Record, path: PathLike) -> Path: ...
    @overload
    def save(self, record: Record, path: Stream) -> Stream: ...
    def save(self, record: Record, path: PathLike | Stream) -> Path | Stream:
        """Write `record` to `path`, adding the format's suffix if it is missing; returns the path of the file.

        The write is atomic: after a crash of the program there is the old file or the complete new one (after a crash
        of the system too, unless `durable` is False). Extra memory: one tensor, and 16 MiB.

        `path` can also be a binary file open for writing, which is returned, still open. If the file cannot seek (a
        pipe), errors in the record are raised before anything is written; otherwise a partial write is truncated again.

        Raises RecordError if a value does not fit the precision, or if the file cannot be written. Gives one
        `RecordWarning` if nonzero values became zero, with their number and paths.
        """
        if not is_path(path):
            self._save_to(record, path)
            return path
        target = self._target(Path(path))
        with _errors_of(target):
            record, underflow = self._checked(record)
            size = (self.room(record) if self.has_room else record.nbytes) if self.is_raw else 0
            smaller = self.compression is not None
            with atomic_write(
                target, size, durable=self.durable, smaller=smaller, follow_links=self.follows_links
            ) as file:
                self._encode(record, file)
        if underflow:
            warn_of_underflow(underflow, str(target))
        return target

    def _save_to(self, record: Record, stream: CanWrite) -> None:
        name = getattr(stream, "name", None)
        target = name if isinstance(name, str) else type(stream).__name__
        with _errors_of(target):
            if not callable(getattr(stream, "write", None)):
                raise RecordError(f"expected a path or an open binary file, not {type(stream).__name__}")
            if isinstance(stream, io.TextIOBase):
                raise RecordError("it takes text; open it in binary mode, as open(path, 'wb')")
            record, underflow = self._checked(record)
            with write_to(stream) as file:
                self._encode(record, file)
        if underflow:
            warn_of_underflow(underflow, target)

    def to_bytes(self, record: Record) -> bytes:
        """The bytes that `save` writes."""
        buffer = io.BytesIO()
        record, underflow = self._checked(record)
        self._encode(record, buffer)
        if underflow:
            warn_of_underflow(underflow, "in memory")
        return buffer.getvalue()

    def header(self, record: Record) -> Header:
        """The header of a file that this recorder writes."""
        return Header.of(record, self.format, precision_label(self.precision))

    def room(self, record: Record) -> int:
        """The bytes of all elements in the file, for raw formats with `has_room`."""
        raise NotImplementedError

    def _checked(self, record: Record) -> tuple[Record, Underflow]:
        check_entries(len(record))
        if record.unreadable:
            path, why = next(iter(record.unreadable.items()))
            others = f" ({len(record.unreadable) - 1} others likewise)" if len(record.unreadable) > 1 else ""
            raise RecordError(
                f"{path}: {why}{others}; to save the rest, drop it: renamed(record, lambda path: None if path in "
                "record.unreadable else path)"
            )
        underflow: Underflow = []
        return record.with_precision(self.precision, underflow), underflow

    def _encode(self, record: Record, file: IO[bytes]) -> None:
        with compressed(file, self.compression) as stream:
            self.write(record, Sink(stream, can_patch=self.compression is None))

    def _target(self, path: Path) -> Path:
        ending = self.suffix + SUFFIXES[self.compression]
        if path.name.endswith(ending):
            return path
        if self.compression is not None and path.name.endswith(self.suffix):
            return path.with_name(path.name + SUFFIXES[self.compression])
        for other in self._endings():
            if other != self.suffix and path.name.endswith(other):
                raise RecordError(f"cannot save {path}: the recorder's compression is {self.compression}, not {other}")
        if not path.name or "\0" in path.name:
            raise RecordError(f"cannot save {str(path)!r}: it names no file")
        return path.with_name(path.name + ending)

    def _endings(self) -> list[str]:
        preferred = SUFFIXES[self.compression]
        return [self.suffix + end for end in sorted(SUFFIXES.values(), key=lambda end: end != preferred)]


@contextlib.contextmanager
def _errors_of(target: object) -> Generator[None]:
    """Add the target to errors of saving."""
    try:
        yield
    except RecordError as error:
        raise RecordError(f"cannot save {target}: {error}") from error
    except OSError as error:
        raise RecordError(f"cannot save {target}: {error.strerror or error}") from error
