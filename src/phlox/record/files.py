"""Files: written atomically and durably, mapped for reading, found with or without their suffix."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import mmap
import os
import stat
import struct
import sys
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from phlox.backend.mapped import Pages
from phlox.errors import RecordError
from phlox.record.names import nearest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


_EARLY = 1 << 24
"""Bytes after which the disk is set to work, so that it is done soon after the writer (measured: 0.7 of the time)."""
_RESERVE = 0x4030582A
"""The request FS_IOC_RESVSP64 of Linux (linux/falloc.h)."""
_LARGE = 1 << 16
"""Bytes of a piece that is not copied together with others."""
_PIECES = 1024
"""As many are written by one call: the least number that POSIX systems have for it (IOV_MAX)."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES}  # of folders that a system cannot sync, or not for this user


@contextlib.contextmanager
def atomic_write(path: Path, size: int = 0, *, durable: bool = True) -> Generator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends well, and vanishes when it does not.

    Whoever opens `path`, at any moment and after any crash, finds the old file or the new one, whole: the bytes go to a
    sibling of a unique name, reach the disk, and only then is it renamed. Permissions are kept, links are followed.
    What a killed writer of `path` left behind is removed by the next one. Unless it is `durable`, the system writes to
    the disk when it likes: then a crash of the whole system, and only that, may leave a file that is not whole.

    Where about how many bytes will come is known, as `size`, the system sets them aside at once, if it can: writing is
    faster then, and a disk that is too full says so (OSError) before anything is written.
    """
    target = Path(os.path.realpath(path))
    temporary, raw = _temporary(target)
    raw.eager = durable
    file = _File(raw)
    try:
        if size:
            _set_aside(raw, size)
        yield file
        file.flush()
        if size:
            file.truncate()  # what was set aside and is not needed
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        if durable:
            os.fsync(raw.fileno())
        if fcntl is None:  # Windows renames no open file; elsewhere closing it would end the lock too early
            file.close()
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        with contextlib.suppress(OSError):  # of bytes that could not be written, which is told already
            file.close()
    if durable:
        _sync_folder(target.parent)


def _temporary(target: Path) -> tuple[Path, _EagerFile]:
    """A new empty file beside `target`, locked for as long as it is open, so that all can see its writer live."""
    from hashlib import blake2b  # only for writing: it is not small

    start = f".phlox-{blake2b(os.fsencode(target.name), digest_size=8).hexdigest()}-"
    _remove_leftovers(target.parent, start)
    while True:
        temporary = target.with_name(f"{start}{os.urandom(8).hex()}.tmp")
        try:
            file = _EagerFile(temporary, "xb")
        except PermissionError as error:
            raise RecordError(f"the folder {target.parent} cannot be written to: {error.strerror}") from error
        try:
            if _locked(file):
                return temporary, file
        except BaseException:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        file.close()


def _set_aside(file: io.FileIO, size: int) -> None:
    """Room on the disk for the first bytes of a new file; nothing where the file system, or the system, does not so."""
    if fcntl is None or sys.platform != "linux":
        return
    try:
        # Not `posix_fallocate`: it writes to every block of a file system that has no such thing.
        fcntl.ioctl(file, _RESERVE, struct.pack("hhqqiI16x", 0, os.SEEK_SET, 0, size, 0, 0))
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
    else:
        file.truncate(size)  # else each write would make it longer, which takes half of what is gained


def _locked(file: _EagerFile) -> bool:
    """Locks it; False where another writer took it for a leftover before that, and removed it."""
    if fcntl is None:
        return True
    with contextlib.suppress(OSError):  # a file system without locks: nobody will take it for a leftover there
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    return os.fstat(file.fileno()).st_nlink > 0


def _remove_leftovers(folder: Path, start: str) -> None:
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if entry.name.startswith(start)]:
            # Who can lock it knows that its writer is dead: a lock ends with the process that held it.
            with contextlib.suppress(OSError), (folder / name).open("r+b") as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / name).unlink()


class _File(io.BufferedWriter):
    """A buffered file that gives large pieces to the system together, as they are."""

    def __init__(self, raw: _EagerFile) -> None:
        super().__init__(raw)
        self._whole = raw

    def writelines(self, lines: Iterable[Any], /) -> None:
        """Writes all of `lines`."""
        pieces = [piece for piece in lines if len(piece)]
        if not hasattr(os, "writev") or sum(map(len, pieces)) < _LARGE * len(pieces):
            super().writelines(pieces)
        else:
            self.flush()
            self._whole.writelines(pieces)


class _EagerFile(io.FileIO):
    """A new file that goes to the disk while it is being written, and not only when it is synced, if it is `eager`."""

    eager = True
    _started = 0
    _pending = 0

    def write(self, data: Any, /) -> int:
        """Writes what it can of `data`."""
        return self._written(super().write(data))

    def writelines(self, lines: Iterable[Any], /) -> None:
        """Writes all of `lines`, which are not empty."""
        pieces = deque(map(memoryview, lines))
        while pieces:
            count = self._written(os.writev(self.fileno(), list(itertools.islice(pieces, _PIECES))))
            while count:
                first = pieces.popleft()
                if count < len(first):
                    pieces.appendleft(first[count:])
                count -= min(count, len(first))

    def _written(self, count: int) -> int:
        self._pending += count
        if self.eager and self._pending >= _EARLY and hasattr(os, "posix_fadvise"):
            end = self.tell()
            # Linux starts to write such pages and keeps them, for they are not clean yet. Errors are left to the sync.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fileno(), self._started, end - self._started, os.POSIX_FADV_DONTNEED)
            self._started, self._pending = end, 0
        return count


def map_file(path: Path) -> memoryview:
    """The bytes of a file, read-only, mapped and not read. The mapping lives as long as anything that views it.

    They are `Pages`, which engines may take over, unless the system has no room for what would be written to them.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise RecordError("it is not a regular file")  # opening a pipe would wait for ever
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        try:
            pages = Pages.of(file.fileno())
        except OSError:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(pages).toreadonly()


def is_file(path: Path) -> bool:
    """Whether there is a file at `path`; False, too, where the system refuses the very name."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a folder at `path`; False, too, where the system refuses the very name."""
    try:
        return path.is_dir()
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
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
