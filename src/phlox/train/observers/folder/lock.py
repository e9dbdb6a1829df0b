"""`FolderLock`: one process at a time writes a folder."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path

from phlox.errors import RunError

try:
    import fcntl
except ImportError:  # not on Windows; there, two runs that write the same folder are not detected
    fcntl = None


class FolderLock:
    """A lock on a folder, which is created if it is missing. The lock ends with its process, however that ends.

    On a file system without locks, it does nothing.

    Raises RunError if another process, or another lock of this process, holds the folder, and OSError if the folder
    cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        while True:
            path.mkdir(parents=True, exist_ok=True)
            if fcntl is None:
                return
            self._file = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                raise RunError(f"{path}: another run is writing there; wait for it, or give another folder") from None
            except OSError:  # NFS, for example, locks only files that are open for writing, and a folder cannot be
                self.release()
                return
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), path.stat()):
                    _HELD.add(self)
                    return
            self.release()  # another process has moved it away in between

    def release(self) -> None:
        """Release the lock; a further call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _release_in_child() -> None:
    """A forked child shares the lock, and would hold it after the death of its parent."""
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
