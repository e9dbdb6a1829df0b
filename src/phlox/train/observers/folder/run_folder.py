"""`RunFolder`: the folder of a training run, from which it can be resumed however it ended."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from phlox.backend import Device
from phlox.config import BaseConfig
from phlox.errors import RunError, RunWarning
from phlox.record.formats.parts import INDEX, OWNER, is_own_file, is_unfinished
from phlox.record.io.files import atomic_write, remove_leftovers
from phlox.record.io.links import is_own_folder
from phlox.record.names import nearest
from phlox.train.observers.folder.environment import command_line, environment
from phlox.train.observers.folder.list_file import added_file, names_added
from phlox.train.observers.folder.lock import FolderLock
from phlox.version import __version__

MANIFEST = "run.json"
CONFIG, ENVIRONMENT = "config.json", "environment.json"
FORMAT = 1
"""The version of `run.json`; files of older versions of Phlox have no version, only that of Phlox."""

Status: TypeAlias = Literal["running", "finished", "interrupted", "failed"]

_TEMPORARY = re.compile(r"\.phlox-[0-9a-f-]+\.tmp")  # temporary files that a killed `atomic_write` leaves
_OPEN: weakref.WeakValueDictionary[str, RunFolder] = weakref.WeakValueDictionary()


class RunFolder:
    """The folder of a training run: it creates, locks and describes the folder, and writes each file atomically.

    `run.json` describes the run: its status, its sessions (one for each start: when, where, and the command line), and
    the files that it has written. The status is "running" until the `with` block ends or `complete` is called. Then it
    is "finished" or, after an exception, "interrupted" (Ctrl-C) or "failed", with the reason. A killed process leaves
    the status "running" but no lock, so the next process can see that it was killed. A run that is not finished and has
    written only its description is replaced by a new one.

    A folder without `run.json`, or with files that no run has written, is never deleted or written to: it is an error.
    With `overwrite` the older run is kept beside it, in `NAME.replaced`, until the new one is complete.

    Args:
        path: the path of the folder. It may exist if it is empty.
        overwrite: whether a run in it may be replaced.
        resume: True to resume the run in it; "auto" to resume it if there is one, and to begin one otherwise.
        kind: the kind of the run; a run of another kind cannot be resumed.

    Attributes:
        is_resumed: whether an earlier run is resumed.
        files: the names of the files that the run has written.

    Raises:
        RunError: the folder has a run, but neither `overwrite` nor `resume` was given; it has other files; with
            `resume`, it has no run, or one of another kind or of a newer version of Phlox; another process is writing
            it; or the system cannot create it.

    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> with RunFolder(base / "first") as folder:
    ...     folder.write("notes.txt", b"all went well")
    ...     path = folder.complete()
    >>> sorted(file.name for file in path.iterdir())
    ['notes.txt', 'run.json']
    >>> with RunFolder(base / "first", resume=True) as folder:
    ...     folder.is_resumed, folder.status, folder.files
    (True, 'running', ['notes.txt'])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool | Literal["auto"] = False,
        kind: str = "training",
    ) -> None:
        self.path = Path(path)
        self.is_resumed = False
        self._kind = kind
        self._manifest: dict[str, Any] = {}
        self._lock: FolderLock | None = None
        if not self.path.name or self.path.name == "..":
            raise RunError(f"{self.path}: cannot be the name of a folder; give another, such as runs/first")
        if resume not in (False, True, "auto"):
            raise RunError(f'resume={resume!r}: expected False, True or "auto"')
        if overwrite and resume:
            raise RunError(f"{self.path}: a run is either resumed or overwritten; give one of the two")
        existed = os.path.lexists(self.path)
        try:
            self._enter(overwrite, resume)
        except BaseException as error:
            self._release()
            if not existed:
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # only if it is empty
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise RunError(f"{self.path}: cannot be created ({reason}); give another folder") from error
            raise
        _OPEN[os.path.realpath(self.path)] = self

    @property
    def status(self) -> Status:
        """The status of the run: "running", "finished", "interrupted" or "failed"."""
        return self._manifest["status"]

    @property
    def files(self) -> list[str]:
        """The names of the files that the run has written; `NAME/` is a folder, `NAME/*` one with all files in it."""
        return list(self._manifest["files"])

    def describe(
        self,
        config: BaseConfig | None = None,
        device: Device | None = None,
        seeds: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Write `environment.json` (see `environment`), `config.json` if there is a config, and settings to `run.json`.

        If a resumed run has another config or environment, the former files are kept as `config-1.json`, ...

        Args:
            config: the settings of the run.
            device: the device, for the environment.
            seeds: the seeds of the run by name, for the environment.
            settings: the settings of the learner by name, as plain values.
        """
        if settings is not None:
            self._manifest["settings"] = dict(settings)
            self._write_manifest()
        self._replace(ENVIRONMENT, json.dumps(environment(device, seeds), indent=2) + "\n")
        if config is not None:
            self._replace(CONFIG, config.to_json() + "\n")

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically, and replace one of that name; RunError if the system cannot."""
        path = self.file(name)
        try:
            with atomic_write(path, follow_links=False) as file:
                file.write(data)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from error

    def writer(self, name: str) -> Callable[[bytes], None]:
        """A function of the bytes, which writes them to the file `name`."""
        return lambda data: self.write(name, data)

    def file(self, name: str) -> Path:
        """The path for the file `name`, for writers that are atomic themselves, such as recorders.

        `NAME/` is a folder whose files `NAME/NAME.json` lists under "files"; `NAME/*` is a folder in which all files
        belong to the run. The folder is created.
        """
        plain = name.removesuffix("*").removesuffix("/") if name.endswith(("/", "/*")) else name
        if Path(plain).name != plain or plain in ("", "..", MANIFEST):
            raise RunError(f"{name!r} cannot be a file of a run; give a plain name other than {MANIFEST}")
        if name not in self._manifest["files"]:
            # List the file before it is written: a listed file may be missing, but an unlisted one is an error.
            self._manifest["files"].append(name)
            self._write_manifest()
        path = self.path / plain
        if plain != name:
            try:
                path.mkdir(exist_ok=True)  # or a link to a folder, which the user has made
            except OSError as error:
                raise _no_folder(path, error) from error
        return path

    def complete(self) -> Path:
        """Mark the run as finished, delete the older run that it replaces, and return the path."""
        self._end("finished", None)
        if is_own_folder(self._replaced):
            self._discard_replaced()
        self._release()
        return self.path

    def close(self, status: Status = "interrupted", reason: str | None = None) -> None:
        """End a run that is not complete, and release the lock; a further call does nothing."""
        if self._lock is not None:
            with contextlib.suppress(RunError):  # a full disk: the status remains "running", without a lock
                self._end(status, reason)
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is None:
            return
        if error is None:
            self.complete()
        elif isinstance(error, Exception):
            self.close("failed", f"{type(error).__name__}: {error}")
        else:
            self.close("interrupted", type(error).__name__)

    # --- the beginning

    @property
    def _replaced(self) -> Path:
        return self.path.with_name(self.path.name + ".replaced")

    def _enter(self, overwrite: bool, resume: bool | Literal["auto"]) -> None:
        if is_own_folder(self._replaced) and not os.path.lexists(self.path):
            self._replaced.rename(self.path)  # killed between two renames
        if os.path.lexists(self.path) and (not self.path.is_dir() or (overwrite and self.path.is_symlink())):
            raise RunError(f"{self.path}: is not the folder of a run, so nothing is written there; give another folder")
        if resume is True and not self.path.is_dir():
            raise RunError(f"{self.path}: there is no such folder, so no run to resume{_similar(self.path)}")
        self._lock = FolderLock(self.path)
        remove_leftovers(self.path)
        if self._is_empty() and is_own_folder(self._replaced) and not overwrite:
            self.path.rmdir()  # killed before the first file of the new run
            self._replaced.rename(self.path)
            self._lock.release()
            self._lock = FolderLock(self.path)
        if self._is_empty():
            if resume is True:
                raise RunError(f"{self.path}: is empty, so there is no run to resume; give another folder")
            self._begin({"files": []})
            return
        manifest = _read(self.path)
        if manifest is not None and _status(manifest) == "finished" and is_own_folder(self._replaced):
            self._discard_replaced()  # killed at the end of `complete`
        if resume:
            self._resume(manifest)
        elif manifest is not None and _is_unused(self.path, manifest):
            _clear(self.path)
            self._begin({"files": []})
        elif overwrite:
            self._overwrite(manifest)
        else:
            raise RunError(self._refusal(manifest))

    def _refusal(self, manifest: dict[str, Any] | None) -> str:
        if manifest is None:
            return f"{self.path}: has files but no {MANIFEST}, so it is not the folder of a run; give another folder"
        return (
            f"{self.path}: exists already, a run that {_SAYS[_status(manifest)]}; give another folder, --resume (in "
            "Python resume=True) to go on with it, or --overwrite (in Python overwrite=True) to replace it"
        )

    def _resume(self, manifest: dict[str, Any] | None) -> None:
        if manifest is None:
            raise RunError(f"{self.path}: has no {MANIFEST}, or a damaged one, so it is no run to resume")
        if "format" not in manifest:
            raise RunError(f"{self.path}: was written by Phlox {manifest['phlox']}, whose runs cannot be resumed")
        if manifest["format"] > FORMAT:
            raise RunError(
                f"{self.path}: its {MANIFEST} has version {manifest['format']}, written by Phlox {manifest['phlox']}; "
                f"this one ({__version__}) knows versions up to {FORMAT}: install a newer one"
            )
        if manifest.get("kind") != self._kind:
            raise RunError(
                f"{self.path}: is a run of the kind {manifest.get('kind')!r}, and cannot be resumed as {self._kind!r}; "
                "give another folder"
            )
        self.is_resumed = True
        self._begin(manifest)

    def _overwrite(self, manifest: dict[str, Any] | None) -> None:
        _check_deletable(self.path)
        if os.path.lexists(self._replaced) and not is_own_folder(self._replaced):
            raise RunError(
                f"{self._replaced}: is a link or a file, where the older run would be kept until the new one is "
                "complete; move it away"
            )
        if is_own_folder(self._replaced):  # keeps the older run; the run in `path` is not complete, so it is deleted
            _clear(self.path)
        else:
            former = self._lock
            self.path.rename(self._replaced)
            self.path.mkdir()  # an error if another process has just done the same
            self._lock = FolderLock(self.path)
            if former is not None:
                former.release()
        self._begin({"files": []})

    def _begin(self, manifest: dict[str, Any]) -> None:
        """Write `run.json` with a new session after the sessions of `manifest`."""
        sessions = [_ended(former) for former in manifest.get("sessions", [])]
        session = {
            "started": _now(), "ended": None, "status": "running", "reason": None, "phlox": __version__,
            "host": platform.node(), "process": os.getpid(), "command": command_line(sys.argv),
        }  # fmt: skip
        self._manifest = {
            "phlox": __version__, "format": FORMAT, "kind": self._kind, "status": "running",
            "sessions": [*sessions, session], "files": manifest["files"],
        }  # fmt: skip
        self._write_manifest()

    def _is_empty(self) -> bool:
        return next(_entries(self.path), None) is None

    # --- the end

    def _end(self, status: Status, reason: str | None) -> None:
        self._manifest["status"] = status
        self._manifest["sessions"][-1] |= {"ended": _now(), "status": status, "reason": reason}
        self._write_manifest()

    def _discard_replaced(self) -> None:
        try:
            _clear(self._replaced)
            self._replaced.rmdir()
        except (RunError, OSError) as error:
            warnings.warn(f"the replaced run could not be deleted: {error}", RunWarning, stacklevel=4)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        _OPEN.pop(os.path.realpath(self.path), None)

    def _write_manifest(self) -> None:
        try:
            with atomic_write(self.path / MANIFEST, follow_links=False) as file:
                file.write(json.dumps(self._manifest, indent=2).encode() + b"\n")
        except OSError as error:
            raise RunError(f"{self.path / MANIFEST}: cannot be written ({error.strerror})") from error

    def _replace(self, name: str, text: str) -> None:
        path = self.path / name
        if path.exists() and path.read_text(encoding="utf-8") != text:
            stem, number = path.stem, 1
            while (former := f"{stem}-{number}{path.suffix}") and (self.path / former).exists():
                number += 1
            self.write(former, path.read_bytes())
        self.write(name, text.encode())


def claim(folder: Path, name: str) -> Path:
    """The path of a file in a folder; if the folder is that of an open run of this process, the file is listed in it.

    A file that is not listed protects the folder from being overwritten; see `RunFolder.file` for names of folders.
    """
    run = _OPEN.get(os.path.realpath(folder))
    if run is not None:
        return run.file(name)
    path = folder / name.removesuffix("*")
    if name.endswith(("/", "/*")):
        path.mkdir(parents=True, exist_ok=True)
    return path


def _no_folder(path: Path, error: OSError) -> RunError:
    reason = "it is a link that leads nowhere" if path.is_symlink() and not path.exists() else error.strerror or error
    return RunError(f"{path}: cannot be created ({reason}); move it away, or give another folder")


_SAYS: Mapping[str, str] = {
    "running": "was killed", "finished": "has finished", "interrupted": "was interrupted", "failed": "has failed",
}  # fmt: skip


def _status(manifest: Mapping[str, Any]) -> str:
    """The status of a run that holds no lock; an older Phlox made the folder only at the end, without a status."""
    status = manifest.get("status", "finished")
    return status if status in _SAYS else "running"


def _ended(session: dict[str, Any]) -> dict[str, Any]:
    """An earlier session; if its status is "running" it was killed, because it holds no lock."""
    return {**session, "status": "killed"} if session.get("status") == "running" else session


def _is_unused(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Did the run end before it wrote any result?"""
    described = {MANIFEST, CONFIG, ENVIRONMENT, "checkpoints.json", "checkpoints-added.jsonl"}
    files = (entry for entry in folder.rglob("*") if not entry.is_dir() and not _TEMPORARY.fullmatch(entry.name))
    return (
        _status(manifest) != "finished"
        and next(_foreign(folder, {MANIFEST, *manifest["files"]}), None) is None
        and all(entry.name in described for entry in files)
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _similar(path: Path) -> str:
    try:
        near = nearest(path.name, [entry.name for entry in path.parent.iterdir() if entry.is_dir()])
    except OSError:
        return ""
    return f"; did you mean {path.with_name(near)}?" if near else ""


def _read(folder: Path, name: str = MANIFEST) -> dict[str, Any] | None:
    """The list of files of a run, or of a folder in it; None if there is none."""
    try:
        manifest: Any = json.loads((folder / name).read_text(encoding="utf-8"))
        manifest["files"] = [str(file) for file in manifest["files"]]
        return manifest if "phlox" in manifest and isinstance(manifest.get("format", 0), int) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _entries(folder: Path) -> Iterator[Path]:
    return (entry for entry in sorted(folder.iterdir()) if not _TEMPORARY.fullmatch(entry.name))


def _check_deletable(folder: Path) -> None:
    listed = _read(folder)
    if listed is None and next(_entries(folder), None) is not None:
        raise RunError(
            f"{folder}: contains no {MANIFEST}, so it is not the folder of a run and is not overwritten; "
            "give another folder"
        )
    foreign = next(_foreign(folder, {MANIFEST, *(listed or {"files": []})["files"]}), None)
    if foreign is not None:
        raise RunError(
            f"{folder}: contains {foreign!r}, which no run has written, so it is not overwritten; "
            "move that away, or give another folder"
        )


def _foreign(folder: Path, listed: set[str]) -> Iterator[str]:
    for entry in _entries(folder):
        if entry.name in listed and is_own_folder(entry):
            # A folder that several processes have written.
            names = (file.name for file in entry.iterdir() if file.name != INDEX and not is_own_file(file.name))
            yield from (f"{entry.name}/{name}" for name in names)
        elif not is_own_folder(entry):
            if entry.name not in listed:
                yield entry.name
        elif f"{entry.name}/" in listed:
            path = entry / f"{entry.name}.json"
            inner = _read(entry, path.name) or {"files": []}
            own = {path.name, added_file(path).name, *inner["files"], *names_added(path)}
            names_inside = (
                f"{entry.name}/{name}" for name in _foreign(entry, own) if not is_unfinished(name) and name != OWNER
            )
            yield from names_inside
        elif f"{entry.name}/*" not in listed:
            yield entry.name


def _clear(folder: Path) -> None:
    """Delete the files of a run, and their list last, so that an interrupted deletion can be resumed."""
    _check_deletable(folder)
    listed = {MANIFEST, *(_read(folder) or {"files": []})["files"]}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == MANIFEST):
        if not is_own_folder(entry):
            entry.unlink()
        elif f"{entry.name}/*" in listed:
            shutil.rmtree(entry)
        else:
            for inner in sorted(entry.iterdir(), key=lambda inner: inner.name == f"{entry.name}.json"):
                if is_own_folder(inner):
                    shutil.rmtree(inner)
                else:
                    inner.unlink()
            entry.rmdir()
