"""The storage of records in shards: a local folder, or one of a remote file system or object store by fsspec.

A save writes its files to a working folder and commits it. Locally that is a hidden folder, which is renamed. Object
stores cannot rename: there the files are written to their final place, and the index, written last, commits them.

The folder itself may be a link. Reading follows links in it; writing and removing affect the link itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Generator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from phlox.errors import ExtraNotInstalledError, RecordError
from phlox.record.dtypes import Array
from phlox.record.formats.parts import INDEX, is_own_file
from phlox.record.io.byte_ranges import Files, MappedFiles
from phlox.record.io.files import atomic_write, sync_folder
from phlox.record.io.links import remove_files, remove_link
from phlox.record.io.sink import Sink

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")


def storage_of(folder: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Storage:
    """The storage of a path, or of a URL that fsspec knows.

    Raises ExtraNotInstalledError for a URL without fsspec, and RecordError for one of an unknown protocol.
    """
    text = os.fspath(folder)
    if not _URL.match(text):
        if options:
            raise RecordError(
                f"{text}: storage_options={dict(options)!r} are for a URL, as s3://bucket/run; not a path"
            )
        return LocalFolder(Path(text))
    return RemoteFolder(text, options or {})


@final
class LocalFolder:
    """A folder of a file system that this machine has mounted.

    Names of files are relative to it, with `/`; the folder itself is "".
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        """The folder, for messages."""

    def listing(self, folder: str) -> dict[str, int | None]:
        """The entries of a folder: the size of each file, None for a folder; empty if it does not exist."""
        sizes: dict[str, int | None] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                try:
                    sizes[entry.name] = None if entry.is_dir() else entry.stat().st_size
                except FileNotFoundError:
                    pass
                except OSError:
                    if not entry.is_symlink():  # a link to itself
                        raise
        return sizes

    def read(self, path: str) -> bytes:
        """A whole file; FileNotFoundError if there is none."""
        return (self.root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file, which appears complete or not at all."""
        with atomic_write(self.root / path, follow_links=False) as file:
            file.write(data)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that does not exist yet; False if it does."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            remove_link(self.root / path)
            with (self.root / path).open("xb") as file:
                file.write(data)
        except FileExistsError:
            if not self.root.is_dir():
                raise RecordError(f"{self.root}: it is a file; give a folder") from None
            return False
        return True

    @contextlib.contextmanager
    def writer(self, path: str, size: int) -> Generator[Sink]:
        """A new large file of about this size, which appears complete or not at all."""
        with atomic_write(self.root / path, size, follow_links=False) as file:
            yield Sink(file, can_patch=True)

    def remove(self, path: str) -> None:
        """Remove a file; it is no error if there is none."""
        (self.root / path).unlink(missing_ok=True)

    def remove_step(self, folder: str) -> None:
        """Remove a folder with all files that a save writes, the index first; other files stay."""
        remove_files(self.root / folder, _is_written, INDEX)

    def working(self, target: str) -> str:
        """The folder to which the files for `target` are written."""
        return f".phlox-{target or 'record'}.unfinished"

    def prepare(self, working: str) -> None:
        """Make an empty working folder."""
        self.remove_step(working)
        (self.root / working).mkdir(parents=True, exist_ok=True)

    def commit(self, working: str, target: str, index: bytes) -> None:
        """Move the files of the working folder, with this index, to `target`, atomically."""
        source, goal = self.root / working, self.root / target
        self.write(f"{working}/{INDEX}", index)
        try:
            if not target:
                raise FileExistsError
            remove_link(goal)
            source.rename(goal)  # also over an empty folder
        except OSError:
            if not goal.is_dir():
                raise
            # The folder has an older record, which stays complete until the index changes: new files have other names.
            names = sorted(self.listing(working), key=lambda name: name == INDEX)
            for name in names:
                if name == INDEX:
                    sync_folder(goal)
                (source / name).replace(goal / name)
            sync_folder(goal)
            with contextlib.suppress(OSError):
                source.rmdir()
        sync_folder(self.root)

    def files(self, folder: str) -> Files:
        """The files of a folder, to read parts of them."""
        return MappedFiles(self.root / folder if folder else self.root)

    def location(self, target: str) -> str:
        """The path or URL of a folder, for messages."""
        return str(self.root / target)


@final
class RemoteFolder:
    """A folder of a file system that fsspec reads and writes: object stores, HDFS, memory, ..."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.name = url.rstrip("/")
        try:
            core: Any = import_module("fsspec.core")
        except ImportError:
            raise ExtraNotInstalledError(
                f"{url}: reading and writing URLs needs fsspec: install Phlox with the extra 'distributed'"
            ) from None
        try:
            self._system, root = core.url_to_fs(url, **options)
        except ImportError as error:  # a package for this protocol is missing
            raise ExtraNotInstalledError(f"{url}: {error}") from None
        except (ValueError, TypeError) as error:
            raise RecordError(f"{url}: {error}") from error
        self.root = str(root).rstrip("/")

    def listing(self, folder: str) -> dict[str, int | None]:
        """See `LocalFolder.listing`."""
        return {
            name: None if entry["type"] == "directory" else int(entry["size"])
            for name, entry in self._entries(folder).items()
        }

    def read(self, path: str) -> bytes:
        """See `LocalFolder.read`."""
        return bytes(self._system.cat_file(self._path(path)))

    def write(self, path: str, data: bytes) -> None:
        """See `LocalFolder.write`."""
        self._system.pipe_file(self._path(path), data)

    def create(self, path: str, data: bytes) -> bool:
        """See `LocalFolder.create`; reading the file again shows which of two simultaneous writers has won."""
        self._remove_link("", path)
        self._system.invalidate_cache()
        if self._system.exists(self._path(path)):
            return False
        self._system.makedirs(self._path(""), exist_ok=True)
        self.write(path, data)
        return self.read(path) == data

    @contextlib.contextmanager
    def writer(self, path: str, size: int) -> Generator[Sink]:
        """See `LocalFolder.writer`; an incomplete file belongs to no index."""
        with self._system.open(self._path(path), "wb") as file:
            yield Sink(file)

    def remove(self, path: str) -> None:
        """See `LocalFolder.remove`."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(path))

    def remove_step(self, folder: str) -> None:
        """See `LocalFolder.remove_step`."""
        self._remove_link("", folder)
        listing = self.listing(folder)
        written = [name for name in listing if name == INDEX or is_own_file(name)]
        for name in sorted(written, key=lambda name: name != INDEX):
            self.remove(f"{folder}/{name}")
        if len(written) == len(listing):
            with contextlib.suppress(OSError, NotImplementedError):  # an object store has no folders
                self._system.rmdir(self._path(folder))

    def working(self, target: str) -> str:
        """See `LocalFolder.working`."""
        return target

    def prepare(self, working: str) -> None:
        """See `LocalFolder.prepare`."""
        self._remove_link("", working)
        self._system.makedirs(self._path(working), exist_ok=True)
        self._remove_link(working, INDEX)

    def commit(self, working: str, target: str, index: bytes) -> None:
        """See `LocalFolder.commit`."""
        self.write(f"{target}/{INDEX}" if target else INDEX, index)

    def files(self, folder: str) -> Files:
        """See `LocalFolder.files`."""
        return _RemoteFiles(self, folder)

    def location(self, target: str) -> str:
        """See `LocalFolder.location`."""
        return f"{self.name}/{target}" if target else self.name

    def _entries(self, folder: str) -> dict[str, dict[str, Any]]:
        """The file system's records of a folder's entries, by name."""
        path = self._path(folder)
        self._system.invalidate_cache()
        try:
            listing = self._system.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link to itself
                raise
            return {}
        names = {str(entry["name"]).rstrip("/"): entry for entry in listing}
        # Some stores list a folder as an entry of itself.
        return {name.rpartition("/")[2]: entry for name, entry in names.items() if name != path.rstrip("/")}

    def _remove_link(self, folder: str, name: str) -> None:
        """Remove the entry of that name if it is a link or has further names: a write would change its target."""
        entry = self._entries(folder).get(name, {}) if name else {}
        is_shared = entry.get("type") == "file" and entry.get("nlink", 1) > 1
        if is_shared or entry.get("islink") or entry.get("type") == "link":
            self.remove(f"{folder}/{name}" if folder else name)

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/") if path else self.root

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """The bytes of a range."""
        return bytes(self._system.cat_file(self._path(path), start=start, end=stop))


Storage: TypeAlias = LocalFolder | RemoteFolder
"""The storage of a record in shards."""


def _is_written(name: str) -> bool:
    """Is it the name of a file that a save writes into the folder of a step?"""
    return name == INDEX or is_own_file(name) or (name.startswith(".phlox-") and name.endswith(".tmp"))


class _RemoteFiles:
    is_mapped = False

    def __init__(self, storage: RemoteFolder, folder: str) -> None:
        self.name = storage.location(folder)
        self._storage, self._folder = storage, folder

    def sizes(self) -> dict[str, int]:
        return {name: size for name, size in self._storage.listing(self._folder).items() if size is not None}

    def read(self, name: str, start: int, stop: int) -> Array:
        path = f"{self._folder}/{name}" if self._folder else name
        try:
            data = self._storage.read_range(path, start, stop)
        except Exception as error:  # each file system has its own errors
            raise RecordError(f"{self.name}/{name}: it cannot be read: {error}") from error
        if len(data) != stop - start:
            raise RecordError(f"{self.name}/{name}: it ends at byte {start + len(data)}, where {stop} were expected")
        return np.frombuffer(data, np.uint8)
