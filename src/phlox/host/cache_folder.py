"""A bounded folder on disk for what is costly to compute again, shared by the processes of one user.

An entry is a folder of files. It may hold machine code, so an entry that another user owns, or could have written, is
never read. An entry is complete once it has its name: it is written beside the others and then renamed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

VARIABLE = "PHLOX_CACHE"
"""The environment variable that names the folder of all caches of Phlox, or is `off`."""

OFF = "off"

_log = logging.getLogger("phlox.compile")
_refused: set[Path] = set()
"""The folders that a warning has named."""
_DIGESTS = "digests"
"""The file of an entry that lists its files with their SHA-256 digests. Its time is that of the last use."""
_PARTIAL = "partial-"
_ABANDONED = 3600.0
"""The seconds after which an unfinished entry is that of a process that ended."""


def root() -> Path | None:
    """The folder of all caches of Phlox; None if caches are switched off, or if this system has no owners of files."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen == OFF or not hasattr(os, "geteuid"):
        return None
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "phlox"
    except RuntimeError:  # the user has no home
        return None


def is_private(path: str | os.PathLike[str]) -> bool:
    """Does a file or folder belong to this user, who alone may write to it? False for a symbolic link.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     is_private(folder)
    True
    """
    status = os.lstat(path)
    return not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def private_folder(name: str) -> Path | None:
    """The folder with this name below `root()`, which is created; None if there is none that is safe to use."""
    parent = root()
    if parent is None:
        return None
    folder = parent / name
    try:
        parent.parent.mkdir(parents=True, exist_ok=True)
        for path in (parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            if not is_private(path):
                if path not in _refused:
                    _log.warning("the cache folder %s is not used: another user owns it or may write to it", path)
                _refused.add(path)
                return None
    except OSError as error:
        _log.info("the cache folder %s cannot be used: %s", folder, error)
        return None
    return folder


@cache
def processor() -> str:
    """A short text that differs between processors with different instructions."""
    lines: set[str] = set()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith(("flags", "Features", "model name")):
                lines.add(line)
    except OSError:
        pass
    return hashlib.sha256(f"{platform.machine()} {sorted(lines)}".encode()).hexdigest()[:16]


class CacheFolder:
    """The entries of one kind.

    Args:
        name: the name of the folder, below `root()`.
        limit: the number of bytes from which on the entries that were not used for the longest time are deleted.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit

    def load(self, key: str) -> Path | None:
        """The folder of an entry whose files are intact; None if there is none. A damaged entry is deleted."""
        folder = private_folder(self.name)
        if folder is None or not (folder / key).is_dir():
            return None
        entry = folder / key
        try:
            files = list(entry.iterdir())
            if not all(map(is_private, (entry, *files))):
                _log.warning("the cache entry %s is not used: another user owns it or may write to it", entry)
                return None
            digests = (entry / _DIGESTS).read_text("ascii")
            if digests == _digests(file for file in files if file.name != _DIGESTS):
                os.utime(entry / _DIGESTS)
                return entry
        except (OSError, ValueError):
            pass
        self.discard(key, "is damaged")
        return None

    def discard(self, key: str, reason: str) -> None:
        """Delete an entry that is of no use."""
        folder = private_folder(self.name)
        if folder is not None:
            _log.warning("the cache entry %s %s, and is made again", folder / key, reason)
            shutil.rmtree(folder / key, ignore_errors=True)

    def store(self, key: str, files: Mapping[str, bytes]) -> None:
        """Add an entry, unless there is one; older ones go if there are too many bytes. Failing is no error."""
        folder = private_folder(self.name)
        if folder is None:
            return
        partial = None
        try:
            partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
            for name, content in files.items():
                (partial / name).write_bytes(content)
                (partial / name).chmod(0o600)
            (partial / _DIGESTS).write_text(_digests(partial / name for name in files), "ascii")
            (partial / _DIGESTS).chmod(0o600)
            partial.rename(folder / key)
        except OSError as error:  # the disk is full, or another process was first
            _log.info("the cache entry %s was not written: %s", folder / key, error)
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
        prune(folder, self.limit)


def prune(folder: Path, limit: int) -> None:
    """Delete the entries of a folder (files or folders) that were not used for the longest time, beyond some bytes."""
    sizes: list[tuple[float, int, Path]] = []
    for entry in folder.iterdir():
        try:
            files = [file.stat() for file in (entry.iterdir() if entry.is_dir() else [entry])]
        except OSError:  # another process has deleted it
            continue
        used = max([max(file.st_mtime, file.st_atime) if entry.is_file() else file.st_mtime for file in files] or [0.0])
        if entry.name.startswith(_PARTIAL):
            if time.time() - used > _ABANDONED:
                shutil.rmtree(entry, ignore_errors=True)
            continue
        sizes.append((used, sum([file.st_size for file in files]), entry))
    excess = sum([size for _, size, _ in sizes]) - limit
    for _, size, entry in sorted(sizes):
        if excess <= 0:
            break
        excess -= size
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _digests(files: Iterable[Path]) -> str:
    """A line for each file, in the order of their names: its digest, and its name."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.name}\n" for file in files]
    return "".join(sorted(lines, key=lambda line: line.partition(" ")[2]))
