"""Files: written atomically and durably, mapped for reading, found with or without their suffix."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import BinaryIO

from phlox.errors import RecordError
from phlox.record.names import nearest


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends well, and vanishes when it does not.

    Whoever opens `path`, at any moment and after any crash, finds the old file or the new one, whole: the bytes go to a
    sibling of a unique name, reach the disk, and only then is it renamed. Permissions are kept, links are followed.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".phlox-{os.urandom(8).hex()}.tmp")
    with temporary.open("xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    _sync_folder(target.parent)


def map_file(path: Path) -> memoryview:
    """The bytes of a file, read-only, mapped and not read. The mapping lives as long as anything that views it."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise RecordError("it is not a regular file")  # opening a pipe would wait for ever
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def is_file(path: Path) -> bool:
    """Whether there is a file at `path`; False, too, where the system refuses the very name."""
    try:
        return path.is_file()
    except OSError:
        return False


def find_file(candidates: Sequence[Path]) -> Path:
    """The first of `candidates` that exists; RecordError with the names of similar siblings where none does."""
    for candidate in candidates:
        if is_file(candidate):
            return candidate
    path = candidates[0]
    if os.path.lexists(path):
        return path  # reading it gives the error that fits
    raise RecordError(f"{path}: there is no such file{_siblings(path)}")


def _siblings(path: Path) -> str:
    try:
        names = sorted(entry.name for entry in os.scandir(path.parent))
    except OSError:
        return f"; the folder {path.parent} does not exist or cannot be read"
    near = nearest(path.name, names)
    return f"; did you mean {near}?" if near else ""


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows syncs the rename with the file system's journal
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
