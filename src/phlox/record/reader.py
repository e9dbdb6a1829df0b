"""`Reader`: what all formats that can be read share (files, memory, compression, errors), so that one is short."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, TypeAlias

from phlox.errors import RecordError
from phlox.record.compression import SUFFIXES
from phlox.record.files import find_file
from phlox.record.record import Record
from phlox.record.source import Source, open_source, reason, unpacked

PathLike: TypeAlias = str | os.PathLike[str]


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

    def load(self, path: PathLike) -> Record:
        """The record in the file at `path`, given with or without its suffix, of any compression.

        A file that is not compressed is mapped, not read. Raises RecordError, naming file and reason, for a file that
        is missing, damaged, of another format or of a newer schema.
        """
        return self.decode(open_source(find_file(self._candidates(Path(path))), self.max_bytes, self.verify))

    def from_bytes(self, data: bytes | bytearray | memoryview) -> Record:
        """The record in `data`, as `load` gives it; its tensors are views of `data`, which must not change."""
        view, name = memoryview(data).toreadonly().cast("B"), f"{self.format} bytes"
        return self.decode(unpacked(view, name, self.max_bytes, verify=self.verify))

    def decode(self, source: Source) -> Record:
        """`read`, every failure made a RecordError that names the file."""
        try:
            return self.read(source)
        except Exception as error:
            raise RecordError(f"{source.name}: not a valid {self.format} record: {reason(error)}") from error

    def _endings(self) -> list[str]:
        return [suffix + end for suffix in self.suffixes() for end in SUFFIXES.values()]

    def _candidates(self, path: Path) -> list[Path]:
        if not path.name or path.name.endswith(tuple(self._endings())):
            return [path]
        first, *others = (path.with_name(path.name + ending) for ending in self._endings())
        return [first, path, *others]
