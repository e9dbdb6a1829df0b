"""Files: atomic durable writes, memory-mapped reads, and search with or without suffix."""

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
"""Bytes after which write-back to disk is started, so that it ends soon after the last write (0.7 of the time)."""
_RESERVE = 0x4030582A
"""The request FS_IOC_RESVSP64 of Linux (linux/falloc.h)."""
CALL = 1 << 20
"""Bytes per write call, ending at a multiple of it: Linux keeps them in one contiguous folio.

Mapping the file then takes 133 page faults for 134 MB (641 if calls end elsewhere). With twice as many bytes Linux uses
pages of 2 MiB. A virtual machine returns these to its host when they are free, and must wait to get them again
(measured: 370 ms for 134 MB instead of 32; and 29 with either if the machine has them).
"""
_ZEROS = memoryview(bytes(CALL))
_WRITERS = [f"{number:016x}" for number in range(4)]
"""In the names of temporary files that writers of one path share; one that finds all in use takes a new name."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES}  # for folders that the system, or this user, cannot sync


@contextlib.contextmanager
def atomic_write(
    path: Path, size: int = 0, *, durable: bool = True, smaller: bool = False, follow_links: bool = True
) -> Generator[IO[bytes]]:
    """A new file that replaces `path` when the block succeeds, and is removed when it fails.

    At any time, and after any crash, `path` is the complete old file or the complete new one: the bytes are written to
    a temporary sibling, synced to disk, and only then renamed. Permissions are kept. Leftovers of a killed writer are
    removed by the next one. Without `durable` nothing is synced: then a crash of the whole system (but only that) can
    leave an incomplete file.

    A link at `path` is followed; without `follow_links`, for files that the user has not named, the file takes its
    place. Other names of the old file (hard links) keep the old bytes.

    If the approximate `size` is known, disk space is preallocated where possible. Writing is then faster, and a full
    disk raises OSError before anything is written. If the file may become `smaller`, such as a compressed one, too
    little space for the preallocation is not an error.

    Preallocation helps small files too: when ext4 renames an unallocated file over an existing one, it starts to write
    the data at once, and the rename waits for that.
    """
    target = Path(os.path.realpath(path)) if follow_links else Path(os.path.realpath(path.parent), path.name)
    temporary, raw = _temporary(target)
    raw.eager = durable
    file = io.BufferedWriter(raw)
    try:
        if size:
            _set_aside(raw, size, smaller)
        yield file
        file.flush()
        if size:
            file.truncate()  # frees unused preallocated space
        with contextlib.suppress(FileNotFoundError):
            if not target.is_symlink():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        if durable:
            os.fsync(raw.fileno())
        if fcntl is None:  # Windows cannot rename an open file; elsewhere closing it would release the lock too early
            file.close()
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        with contextlib.suppress(OSError):  # an error of bytes that could not be written was raised already
            file.close()
    if durable:
        sync_folder(target.parent)


@contextlib.contextmanager
def write_to(stream: Any) -> Generator[IO[bytes]]:
    """A file that writes to `stream` (any object with `write`): everything, or nothing if the block fails.

    If the stream cannot seek, or always appends, the bytes go through an anonymous temporary file. Otherwise a failed
    write is truncated again.
    """
    if not _can_seek(stream):
        import tempfile  # imported only here: it is slow to import

        with tempfile.TemporaryFile() as file:
            yield cast("IO[bytes]", file)
            file.seek(0)
            while data := file.read(CALL):
                _write_all(stream, memoryview(data))
        return
    if isinstance(stream, io.RawIOBase):  # a raw file may write less than it is given
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
        stream.seek(0, os.SEEK_END)  # a compressing file raises here
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
    """A raw file that is not closed here."""

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


def _temporary(target: Path) -> tuple[Path, EagerFile]:
    """A new empty file next to `target`, locked while it is open, which shows that its writer is alive.

    It has the first free of a few names, so that leftovers of killed writers are found without a list of the folder,
    which may have many files.
    """
    from hashlib import blake2b  # imported only for writing: it is slow to import

    start = f".phlox-{blake2b(os.fsencode(target.name), digest_size=8).hexdigest()}-"
    names = [f"{start}{number}.tmp" for number in _WRITERS]
    folder = f"{target.parent}{os.sep}"
    for name in names:
        if os.access(folder + name, os.F_OK):
            _remove_leftover(target.with_name(name))
    while True:
        temporary = target.with_name(names.pop(0) if names else f"{start}{os.urandom(8).hex()}.tmp")
        try:
            file = EagerFile(temporary, "xb")
        except FileExistsError:  # of another writer that is alive
            continue
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
    """Preallocate disk space for the first bytes of a new file, if the system and the file system support it."""
    if fcntl is None or sys.platform != "linux":
        return
    try:
        # Not `posix_fallocate`: without file system support it writes to every block.
        fcntl.ioctl(file, _RESERVE, struct.pack("hhqqiI16x", 0, os.SEEK_SET, 0, size, 0, 0))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return
        if not smaller:
            raise
        file.truncate(0)  # frees the part that was allocated
    else:
        file.truncate(size)  # otherwise each write extends the file, which costs half of the gain


def _locked(file: EagerFile) -> bool:
    """Lock it; False if another writer had taken it for a leftover and removed it."""
    if fcntl is None:
        return True
    with contextlib.suppress(OSError):  # no locks on this file system: there no writer removes leftovers
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    return os.fstat(file.fileno()).st_nlink > 0


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed writers have left in a folder; files of running writers stay."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if entry.name.startswith(".phlox-")]:
            _remove_leftover(folder / name)


def _remove_leftover(path: Path) -> None:
    """Delete a temporary file if its writer is dead: if it can be locked, since a lock ends with its process."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), open(path, "r+b", opener=_itself) as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.lstat()):  # otherwise the name is another writer's by now
            path.unlink()


def _itself(path: str, flags: int) -> int:
    """Opens a file; OSError for a link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


class EagerFile(io.FileIO):
    """A new file, to which several threads can write parts.

    If it is `eager`, write-back starts while it is being written, not only at the sync.
    """

    eager = True

    def write(self, data: Any, /) -> int:
        """Write as much of `data` as possible."""
        position = self.tell()
        count = super().write(memoryview(data)[: CALL - position % CALL])
        self.begin(position, count)
        return count

    def write_at(self, data: memoryview, position: int, *, is_whole: bool = True) -> None:
        """Write all of `data` at `position`, which is after everything written and flushed; thread-safe.

        Unless it `is_whole`, more will follow next to it, and write-back is not started yet.
        """
        while len(data):
            count = os.pwrite(self.fileno(), data[: CALL - position % CALL], position)
            if is_whole:
                self.begin(position, count)
            data, position = data[count:], position + count

    def write_among(self, data: memoryview, position: int, start: int, stop: int) -> None:
        """Like `write_at` with `is_whole=False`, as the first write in `start` to `stop`, of at most `CALL` bytes.

        It writes the whole range by one call, so that the system keeps it in one folio; bytes of other writes are
        zeros.
        """
        if hasattr(os, "pwritev"):
            before, after = _ZEROS[: position - start], _ZEROS[: stop - position - len(data)]
            count = os.pwritev(self.fileno(), [part for part in (before, data, after) if len(part)], start)
            done = min(max(0, start + count - position), len(data))
            data, position = data[done:], position + done
        self.write_at(data, position, is_whole=False)  # the bytes that the system did not accept

    def begin(self, position: int, count: int) -> None:
        """Start write-back of `count` bytes at `position`."""
        if self.eager and count >= _EARLY and hasattr(os, "posix_fadvise"):
            # Linux starts to write these pages and keeps them in memory, as they are dirty. Errors appear at the sync.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fileno(), position, count, os.POSIX_FADV_DONTNEED)


def map_file(path: Path) -> memoryview:
    """The bytes of a file, memory-mapped and read-only. The mapping lives as long as any view of it.

    They are `Pages`, which engines can use without a copy, unless the system lacks memory for copy-on-write.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise RecordError("it is not a regular file")  # opening a pipe would block for ever
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        try:
            pages = Pages(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError:  # the system has no room for copies
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(pages).toreadonly()


def is_file(path: Path) -> bool:
    """Whether there is a file at `path`; False for an invalid name too."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a folder at `path`; False for an invalid name too."""
    try:
        return path.is_dir()
    except OSError:
        return False


def find_file(candidates: Sequence[Path]) -> Path:
    """The first of `candidates` that exists; RecordError with similar names in the folder if none does."""
    for candidate in candidates:
        if is_file(candidate):
            return candidate
    path = candidates[0]
    if os.path.lexists(path):
        return path  # reading it raises the right error
    raise RecordError(f"{path}: there is no such file{_siblings(path)}")


def _siblings(path: Path) -> str:
    try:
        names = sorted(entry.name for entry in os.scandir(path.parent))
    except OSError:
        return f"; the folder {path.parent} does not exist or cannot be read"
    near = nearest(path.name, names)
    return f"; did you mean {near}?" if near else ""


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if not hasattr(os, "O_DIRECTORY"):  # on Windows the file system's journal syncs the rename
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
