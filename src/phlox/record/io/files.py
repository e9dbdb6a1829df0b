"""Files: written atomically and durably, mapped for reading, found with or without their suffix."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import stat
import struct
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from phlox.errors import RecordError
from phlox.host.mmap import Pages
from phlox.record.names import nearest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


_EARLY = 1 << 16
"""Bytes that are worth setting the disk to work, so that it is done soon after the writer (0.7 of the time)."""
_RESERVE = 0x4030582A
"""The request FS_IOC_RESVSP64 of Linux (linux/falloc.h)."""
CALL = 1 << 20
"""Bytes that are written by one call, up to a multiple of it: Linux keeps them in one piece of memory.

Who maps the file then finds it in 133 faults for 134 MB (641 where calls end elsewhere). Twice as many bytes, and Linux
takes pages of 2 MiB, which a virtual machine gives back to its host when they are free: then it has to wait for them
(measured: 370 ms for 134 MB instead of 32; and 29 with either where the machine has them).
"""
_ZEROS = memoryview(bytes(CALL))
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES}  # of folders that a system cannot sync, or not for this user


@contextlib.contextmanager
def atomic_write(path: Path, size: int = 0, *, durable: bool = True, smaller: bool = False) -> Generator[NewFile]:
    """A new file that takes the place of `path` when the block ends well, and vanishes when it does not.

    Whoever opens `path`, at any moment and after any crash, finds the old file or the new one, whole: the bytes go to a
    sibling of a unique name, reach the disk, and only then is it renamed. Permissions are kept, links are followed.
    What a killed writer of `path` left behind is removed by the next one. Unless it is `durable`, the system writes to
    the disk when it likes: then a crash of the whole system, and only that, may leave a file that is not whole.

    Where about how many bytes will come is known, as `size`, the system sets them aside at once, if it can: writing is
    faster then, and a disk that is too full says so (OSError) before anything is written. Where the file may become
    `smaller`, as a compressed one does, a disk that has less room is written to all the same.

    That pays for small files too: ext4 begins to write a file that has no place on the disk yet at once when it is
    renamed to one that is there, and whoever renames it waits for that.
    """
    target = Path(os.path.realpath(path))
    temporary, raw = _temporary(target)
    raw.eager = durable
    file = NewFile(raw)
    try:
        if size:
            _set_aside(raw, size, smaller)
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


@contextlib.contextmanager
def write_to(stream: Any) -> Generator[IO[bytes]]:
    """A file whose bytes reach `stream`, which is whatever has a `write`: all of them, or, if the block fails, none.

    They go through a file without a name where the stream cannot seek, or writes at its end wherever it stands. From
    one that can, what was added at its end is cut off again.
    """
    if not _can_seek(stream):
        import tempfile  # for this alone: it is not small

        with tempfile.TemporaryFile() as file:
            yield cast("IO[bytes]", file)
            file.seek(0)
            while data := file.read(CALL):
                _write_all(stream, memoryview(data))
        return
    if isinstance(stream, io.RawIOBase):  # which may write less than it is given
        with write_to(buffered := io.BufferedWriter(_Borrowed(stream))) as file:
            yield file
        buffered.flush()
        return
    start = stream.tell()
    end = stream.seek(0, os.SEEK_END)
    stream.seek(start)
    try:
        yield stream
    except BaseException:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.seek(start)
            if end == start:
                stream.truncate()
        raise


def _can_seek(stream: Any) -> bool:
    if not callable(getattr(stream, "seekable", None)) or "a" in str(getattr(stream, "mode", "")):
        return False
    try:
        if not stream.seekable():
            return False
        start = stream.tell()
        stream.seek(0, os.SEEK_END)  # which a file that compresses refuses
        stream.seek(start)
        return True
    except (OSError, ValueError, TypeError):
        return False


def _write_all(stream: Any, data: memoryview) -> None:
    while len(data):
        count = stream.write(data)
        if count is None and isinstance(stream, io.RawIOBase):
            raise BlockingIOError(errno.EAGAIN, "it does not wait, and takes nothing now")
        data = data[len(data) if count is None else count :]


class _Borrowed(io.RawIOBase):
    """A raw file that somebody else closes."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int | None:
        return self._file.write(data)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self, size: int | None = None, /) -> int:
        return self._file.truncate(size)


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


def _set_aside(file: io.FileIO, size: int, smaller: bool) -> None:
    """Room on the disk for the first bytes of a new file; nothing where the file system, or the system, does not so."""
    if fcntl is None or sys.platform != "linux":
        return
    try:
        # Not `posix_fallocate`: it writes to every block of a file system that has no such thing.
        fcntl.ioctl(file, _RESERVE, struct.pack("hhqqiI16x", 0, os.SEEK_SET, 0, size, 0, 0))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return
        if not smaller:
            raise
        file.truncate(0)  # gives back the part of it that there was
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


class NewFile(io.BufferedWriter):
    """A buffered file that threads can write parts of."""

    def __init__(self, raw: _EagerFile) -> None:
        super().__init__(raw)
        self._whole = raw

    @property
    def has_places(self) -> bool:
        """Whether the system has what `write_at` takes."""
        return hasattr(os, "pwrite")

    def write_at(self, data: memoryview, position: int, *, is_whole: bool = True) -> None:
        """Writes all of `data` there, which is after all that was written and flushed: several threads may do so.

        Unless it `is_whole`, there is more to come beside it, and the disk is not yet set to work.
        """
        self._whole.write_at(data, position, is_whole=is_whole)

    def write_among(self, data: memoryview, position: int, start: int, stop: int) -> None:
        """As `write_at` of what is not whole, before anything else from `start` to `stop`, at most `CALL` bytes.

        By one call, so that the system keeps them in one piece of memory: where others will write there are zeros.
        """
        self._whole.write_among(data, position, start, stop)

    def begin(self, start: int, stop: int) -> None:
        """Sets the disk to work on what has been written from `start` to `stop`."""
        self._whole.begin(start, stop - start)

    def skip(self, count: int) -> None:
        """Goes on after so many bytes, which have been written by `write_at`."""
        self.seek(count, os.SEEK_CUR)


class _EagerFile(io.FileIO):
    """A new file that goes to the disk while it is being written, and not only when it is synced, if it is `eager`."""

    eager = True

    def write(self, data: Any, /) -> int:
        """Writes what it can of `data`."""
        position = self.tell()
        count = super().write(memoryview(data)[: CALL - position % CALL])
        self.begin(position, count)
        return count

    def write_at(self, data: memoryview, position: int, *, is_whole: bool = True) -> None:
        """See `NewFile.write_at`."""
        while len(data):
            count = os.pwrite(self.fileno(), data[: CALL - position % CALL], position)
            if is_whole:
                self.begin(position, count)
            data, position = data[count:], position + count

    def write_among(self, data: memoryview, position: int, start: int, stop: int) -> None:
        """See `NewFile.write_among`."""
        if hasattr(os, "pwritev"):
            before, after = _ZEROS[: position - start], _ZEROS[: stop - position - len(data)]
            count = os.pwritev(self.fileno(), [part for part in (before, data, after) if len(part)], start)
            done = min(max(0, start + count - position), len(data))
            data, position = data[done:], position + done
        self.write_at(data, position, is_whole=False)  # what the system did not take

    def begin(self, position: int, count: int) -> None:
        """Set the disk to work on so many bytes there."""
        if self.eager and count >= _EARLY and hasattr(os, "posix_fadvise"):
            # Linux starts to write such pages and keeps them, for they are not clean yet. Errors are left to the sync.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fileno(), position, count, os.POSIX_FADV_DONTNEED)


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
            pages = Pages(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError:  # the system has no room for copies
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
