"""`Reader`: what all formats that can be read share (files, memory, compression, errors), so that one is short."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from typing_extensions import TypeIs

from phlox.backend.out_of_memory import out_of_memory
from phlox.errors import RecordError
from phlox.record.io.compression import SUFFIXES
from phlox.record.io.files import find_file
from phlox.record.io.source import Source, open_source, read_source, reason
from phlox.record.record import Record

PathLike: TypeAlias = str | os.PathLike[str]


class _CanRead(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class CanWrite(Protocol):
    """A binary file that is open for writing."""

    def write(self, data: Any, /) -> Any:
        """Writes bytes."""
        ...


Readable: TypeAlias = bytes | bytearray | memoryview | _CanRead
"""The content of a file: bytes, or an open binary file."""

Stream = TypeVar("Stream", bound=CanWrite)


def is_path(source: object) -> TypeIs[PathLike]:
    """Whether it is a path, and not what is in a file."""
    return isinstance(source, (str, os.PathLike))


class Reader(ABC):
    """Reads records from files or bytes of one format. One that can be written too is a `Recorder`.

    Args:
        max_bytes: the most that a compressed file may unpack to; by default 64 times its size, or 1 GiB if that is
            more.
        verify: whether checksums are verified, where a file has them: those of values and metadata at once, that of a
            tensor when it is first read.
    """

    format: ClassVar[str]
    """The name of the format."""
    suffix: ClassVar[str]
    """The end of its files' names, with the dot."""
    other_suffixes: ClassVar[tuple[str, ...]] = ()
    """Further ends of names that its files may have."""

    def __init__(self, *, max_bytes: int | None = None, verify: bool = True) -> None:
        self.max_bytes = max_bytes
        self.verify = verify

    @abstractmethod
    def read(self, source: Source) -> Record:
        """The record in `source`, its tensors lazy where the format allows.

        Whatever is wrong may be raised as any exception: the base class makes it a RecordError that names the file.
        """

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """Whether a file that begins with these bytes (512, or all) is one of this format."""
        return False

    @classmethod
    def has_ending(cls, name: str) -> bool:
        """Whether this is the name of a file of this format, of any compression."""
        return name.endswith(tuple(suffix + end for suffix in cls.suffixes() for end in SUFFIXES.values()))

    @classmethod
    def suffixes(cls) -> tuple[str, ...]:
        """Every end of its files' names, the usual one first."""
        return (cls.suffix, *cls.other_suffixes)

    def load(self, path: PathLike | Readable) -> Record:
        """The record in the file at `path`, given with or without its suffix, of any compression.

        A file that is not compressed is mapped, not read. `path` may be the content as well: bytes, or an open binary
        file, which is read to its end. Raises RecordError, naming file and reason, for a file that is missing, damaged,
        of another format or of a newer schema.
        """
        if not is_path(path):
            return self.decode(read_source(path, f"{self.format} bytes", self.max_bytes, self.verify))
        return self.decode(open_source(find_file(self._candidates(Path(path))), self.max_bytes, self.verify))

    def from_bytes(self, data: bytes | bytearray | memoryview) -> Record:
        """The record in `data`, as `load` gives it; its tensors are views of `data`, which must not change."""
        return self.decode(read_source(data, f"{self.format} bytes", self.max_bytes, self.verify))

    def decode(self, source: Source) -> Record:
        """`read`, every failure made a RecordError that names the file."""
        try:
            return self.read(source)
        except Exception as error:
            no_memory = out_of_memory(source.name, None, error)
            if no_memory is not None:
                raise no_memory from error
            raise RecordError(f"{source.name}: not a valid {self.format} record: {reason(error)}") from error

    def _endings(self) -> list[str]:
        return [suffix + end for suffix in self.suffixes() for end in SUFFIXES.values()]

    def _candidates(self, path: Path) -> list[Path]:
        if not path.name or path.name.endswith(tuple(self._endings())):
            return [path]
        first, *others = (path.with_name(path.name + ending) for ending in self._endings())
        return [first, path, *others]
