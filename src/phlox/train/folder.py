"""`RunFolder`: the folder that a training run writes, completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phlox.errors import RunError
from phlox.record.io.files import atomic_write
from phlox.version import __version__

try:
    import fcntl
except ImportError:  # not on Windows; there, two runs that write the same folder are not detected
    fcntl = None

MANIFEST = "run.json"
_TEMPORARY = re.compile(r"\.phlox-[0-9a-f-]+\.tmp")  # temporary files that a killed `atomic_write` leaves


class RunFolder:
    """The folder of a training run, which gets its name only when the run is complete.

    During the run, its files are in `NAME.partial` beside it; each file is complete at any moment. `complete` renames
    the folder. A run that is interrupted or killed leaves `NAME.partial` behind; the next run of that name replaces
    it. With `overwrite`, an older run of that name stays untouched until the new one is complete.

    `run.json` lists the files that a run has written. A folder without it, or with other files, is never deleted:
    it is an error.

    Args:
        path: the path of the folder.
        overwrite: whether a run of that name may be replaced.

    Raises:
        RunError: the folder exists already and `overwrite` is False, it was not written by a run, another process is
            writing it, or the system cannot create it.

    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> with RunFolder(base / "first") as folder:
    ...     folder.write("notes.txt", b"all went well")
    ...     path = folder.complete()
    >>> sorted(file.name for file in path.iterdir())
    ['notes.txt', 'run.json']
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.partial = self.path.with_name(self.path.name + ".partial") if self.path.name else self.path
        self.overwrite = overwrite
        self.files: list[str] = []
        self._lock: int | None = None
        if not self.path.name or self.path.name == "..":
            raise RunError(f"{self.path}: cannot be the name of a folder; give another, such as runs/first")
        try:
            self.partial.parent.mkdir(parents=True, exist_ok=True)
            self._enter()
            self._recover()
            self._check_target()
            _clear(self.partial)
            self._write_manifest()
        except BaseException as error:
            self.close()
            with contextlib.suppress(OSError):
                self.partial.rmdir()  # only if it is empty
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise RunError(f"{self.partial}: cannot be created ({reason}); give another folder") from error
            raise

    def write(self, name: str, data: bytes) -> None:
        """Write a file, completely or not at all, and replace one of that name; RunError if the system cannot."""
        path = self.file(name)
        try:
            with atomic_write(path) as file:
                file.write(data)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from error

    def writer(self, name: str) -> Callable[[bytes], None]:
        """A function that writes the file `name`."""
        return lambda data: self.write(name, data)

    def file(self, name: str) -> Path:
        """The path to which to write the file `name`, for writers that are atomic themselves, as recorders are."""
        if Path(name).name != name or name in ("", "..", MANIFEST):
            raise RunError(f"{name!r} cannot be a file of a run; give a plain name other than {MANIFEST}")
        if name not in self.files:
            # List the file before it is written: a listed file may be missing, but an unlisted one is an error.
            self.files.append(name)
            self._write_manifest()
        return self.partial / name

    def complete(self) -> Path:
        """Give the folder its name, replace an older run if that is allowed, and return the path."""
        try:
            self._check_target()
            if self.path.exists():
                self.path.rename(self._replaced)
            self.partial.rename(self.path)
            self._recover()
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be renamed ({error.strerror}); the run is in {self.partial}"
            ) from error
        self.close()
        return self.path

    def close(self) -> None:
        """Release the lock. A run that is not complete stays in `NAME.partial`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _replaced(self) -> Path:
        return self.path.with_name(self.path.name + ".replaced")

    def _recover(self) -> None:
        """Finish a replacement that was interrupted: between two renames, the older run has another name."""
        if self._replaced.exists() and not self.path.exists():
            self._replaced.rename(self.path)
        elif self._replaced.exists():
            _clear(self._replaced)
            self._replaced.rmdir()

    def _check_target(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self.overwrite:
            raise RunError(f"{self.path}: exists already; give another folder, or --overwrite to replace the run in it")
        if self.path.is_symlink() or not self.path.is_dir():
            raise RunError(f"{self.path}: is not the folder of a run, so it is not overwritten; give another folder")
        _check_deletable(self.path)

    def _enter(self) -> None:
        """Create the folder and lock it. The lock is on the folder itself, and ends with the process."""
        while True:
            self.partial.mkdir(exist_ok=True)
            if fcntl is None:
                return
            self._lock = os.open(self.partial, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"{self.partial}: another run is writing there; wait for it, or give another folder"
                ) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), self.partial.stat()):
                    return
            self.close()  # another process completed it in between

    def _write_manifest(self) -> None:
        text = json.dumps({"phlox": __version__, "files": self.files}, indent=2)
        with atomic_write(self.partial / MANIFEST) as file:
            file.write(text.encode() + b"\n")


def _listed(folder: Path) -> set[str] | None:
    """The files listed by a run; None if the folder is not that of a run."""
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {MANIFEST, *map(str, manifest["files"])} if "phlox" in manifest else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _check_deletable(folder: Path) -> None:
    entries = [entry for entry in folder.iterdir() if not _TEMPORARY.fullmatch(entry.name)]
    listed = _listed(folder) if entries else set[str]()
    if listed is None:
        raise RunError(
            f"{folder}: contains no {MANIFEST}, so it is not the folder of a run and is not overwritten; "
            "give another folder"
        )
    foreign = sorted(entry.name for entry in entries if entry.name not in listed or entry.is_dir())
    if foreign:
        raise RunError(
            f"{folder}: contains {foreign[0]!r}, which no run has written, so it is not overwritten; "
            "move that away, or give another folder"
        )


def _clear(folder: Path) -> None:
    """Delete the files of a run, and their list last, so that an interrupted deletion can be resumed."""
    _check_deletable(folder)
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == MANIFEST):
        entry.unlink()
