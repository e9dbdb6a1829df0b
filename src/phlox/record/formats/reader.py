"""`Reader`: the base of all readable formats; it handles files, memory, compression and errors."""

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
    """A binary file, open for writing."""

    def write(self, data: Any, /) -> Any:
        """Write bytes."""
        ...


Readable: TypeAlias = bytes | bytearray | memoryview | _CanRead
"""The content of a file: bytes, or an open binary file."""

Stream = TypeVar("Stream", bound=CanWrite)


def is_path(source: object) -> TypeIs[PathLike]:
    """Whether it is a path, not the content of a file."""
    return isinstance(source, (str, os.PathLike))


class Reader(ABC):
    """Reads records of one format from files or bytes. A format that can be written too is a `Recorder`.

    Args:
        max_bytes: the maximum unpacked size of a compressed file; by default 64 times its size, or 1 GiB if that is
            more.
        verify: verify checksums, if a file has them: for values and metadata at once, for a tensor on its
            first read.
    """

    format: ClassVar[str]
    """The name of the format."""
    suffix: ClassVar[str]
    """The suffix of file names, with the dot."""
    other_suffixes: ClassVar[tuple[str, ...]] = ()
    """Further suffixes of file names."""

    def __init__(self, *, max_bytes: int | None = None, verify: bool = True) -> None:
        self.max_bytes = max_bytes
        self.verify = verify

    @abstractmethod
    def read(self, source: Source) -> Record:
        """The record in `source`, with lazy tensors where the format allows.

        It may raise any exception: the base class converts it to a RecordError that names the file.
        """

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """Whether a file with these first bytes (512, or all) has this format."""
        return False

    @classmethod
    def has_ending(cls, name: str) -> bool:
        """Whether a file name has a suffix of this format, with any compression."""
        return name.endswith(tuple(suffix + end for suffix in cls.suffixes() for end in SUFFIXES.values()))

    @classmethod
    def suffixes(cls) -> tuple[str, ...]:
        """All suffixes of file names, the usual one first."""
        return (cls.suffix, *cls.other_suffixes)

    def load(self, path: PathLike | Readable) -> Record:
        """The record in the file at `path`, with or without its suffix, with any compression.

        An uncompressed file is memory-mapped. `path` can also be the content: bytes, or an open binary file, which is
        read to its end. Raises RecordError, naming file and reason, if a file is missing or damaged, or has another
        format or a newer schema.
        """
        if not is_path(path):
            return self.decode(read_source(path, f"{self.format} bytes", self.max_bytes, self.verify))
        return self.decode(open_source(find_file(self._candidates(Path(path))), self.max_bytes, self.verify))

    def from_bytes(self, data: bytes | bytearray | memoryview) -> Record:
        """The record in `data`, like `load`; its tensors are views of `data`, which must not change."""
        return self.decode(read_source(data, f"{self.format} bytes", self.max_bytes, self.verify))

    def decode(self, source: Source) -> Record:
        """`read`, with every error converted to a RecordError that names the file."""
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
