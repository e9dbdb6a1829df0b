"""`RunFolder`: where a training run leaves its files, all of them or none."""

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
except ImportError:  # Windows has none; two trainings into one folder are then not told apart
    fcntl = None

MANIFEST = "run.json"
_TEMPORARY = re.compile(r"\.phlox-[0-9a-f-]+\.tmp")  # what `atomic_write` leaves behind when killed


class RunFolder:
    """The folder of a training run, which takes its name only when the run is complete.

    While the run goes on, its files are in `NAME.partial` beside it, each of them whole at any moment. `complete` gives
    the folder its name. A run that is interrupted, or killed, leaves `NAME.partial` behind; the next run of that name
    takes its place. With `overwrite`, an older run of that name stays untouched until the new one is complete.

    What a run has written is listed in its `run.json`. A folder without it, or with other files in it, is nobody's to
    delete: it is refused.

    Args:
        path: of the folder to be.
        overwrite: whether a run of that name may be replaced.

    Raises:
        RunError: the folder exists already and `overwrite` is False, it is none that a run has written, another
            process is writing it, or the system refuses to make it.

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
            raise RunError(f"{self.path}: names no folder that could be made; give another, such as runs/first")
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
                self.partial.rmdir()  # if it is empty, that is
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise RunError(f"{self.partial}: cannot be made ({reason}); give another folder") from error
            raise

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all, in place of one of that name; RunError where the system refuses."""
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
        """Where the file `name` is to be written now, by one that writes files whole itself, as recorders do."""
        if Path(name).name != name or name in ("", "..", MANIFEST):
            raise RunError(f"{name!r} cannot be a file of a run; give a plain name other than {MANIFEST}")
        if name not in self.files:
            # Listed first: a file that is listed and missing does no harm, one that is there and not listed does.
            self.files.append(name)
            self._write_manifest()
        return self.partial / name

    def complete(self) -> Path:
        """Give the folder its name, in place of an older run if that was allowed, and return its path."""
        try:
            self._check_target()
            if self.path.exists():
                self.path.rename(self._replaced)
            self.partial.rename(self.path)
            self._recover()
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be put in place ({error.strerror}); the run is in {self.partial}"
            ) from error
        self.close()
        return self.path

    def close(self) -> None:
        """Let others write. What was not completed stays in `NAME.partial`."""
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
        """An older run stands aside under another name for the moment between two renamings; see to it."""
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
            raise RunError(f"{self.path}: is no folder of a run, so it is not overwritten; give another folder")
        _check_deletable(self.path)

    def _enter(self) -> None:
        """Make the folder and lock it. The lock is on the folder itself, and goes with the process."""
        while True:
            self.partial.mkdir(exist_ok=True)
            if fcntl is None:
                return
            self._lock = os.open(self.partial, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"{self.partial}: another training is writing there; wait for it, or give another folder"
                ) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), self.partial.stat()):
                    return
            self.close()  # it was completed by another process in between

    def _write_manifest(self) -> None:
        text = json.dumps({"phlox": __version__, "files": self.files}, indent=2)
        with atomic_write(self.partial / MANIFEST) as file:
            file.write(text.encode() + b"\n")


def _listed(folder: Path) -> set[str] | None:
    """The files that a run says it has written; None where the folder is no run's."""
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
            f"{folder}: holds no {MANIFEST}, so it is no folder of a run and is not overwritten; give another folder"
        )
    foreign = sorted(entry.name for entry in entries if entry.name not in listed or entry.is_dir())
    if foreign:
        raise RunError(
            f"{folder}: holds {foreign[0]!r}, which no run has written, so it is not overwritten; "
            "move that away, or give another folder"
        )


def _clear(folder: Path) -> None:
    """Delete what a run has written, the list of it last: a deletion that was interrupted can be taken up again."""
    _check_deletable(folder)
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == MANIFEST):
        entry.unlink()
