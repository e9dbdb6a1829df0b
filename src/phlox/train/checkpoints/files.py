"""The files of checkpoints: their names, their list, and the search for the newest undamaged one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from phlox.errors import RecordError, RunError, RunWarning
from phlox.record import PrecisionSettings, Record, SafetensorsRecorder, load
from phlox.record.formats.parts import INDEX
from phlox.record.header import NewerSchemaError
from phlox.record.io.crc32 import crc32
from phlox.record.io.files import atomic_write
from phlox.record.names import nearest
from phlox.record.precision import Precision, Underflow, underflow_message
from phlox.record.values import from_json, to_json
from phlox.version import __version__

FOLDER, LIST = "checkpoints", "checkpoints.json"
FORMAT = 1
"""The version of the list, and of the description in a file."""

_MARK = "checkpoint"
"""The name of a file's description, in the metadata of its record."""
_NAME = re.compile(r"step-(\d{8,})(\.safetensors)?")
_BLOCK = 1 << 20


class BestName:
    """The names of the best weights: of a file, and of a folder that several processes have written."""

    FILE = "best.safetensors"
    FOLDER = "best"


@dataclass(frozen=True, slots=True)
class Job:
    """A checkpoint to write."""

    name: str
    record: Record
    mark: Mapping[str, Any]
    seconds: float
    is_best: bool = False

    def without_record(self) -> Job:
        """The same job, without its tensors."""
        return replace(self, record=Record({}))


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a job, without its tensors."""

    path: Path
    mark: Mapping[str, Any]
    is_best: bool
    lost: str = ""
    error: Exception | None = None


def file_name(step: int, *, in_shards: bool = False) -> str:
    """The name of the checkpoint of a step: of its file, or of the folder that several processes write."""
    return f"step-{step:08d}" if in_shards else f"step-{step:08d}.safetensors"


def step_of(name: str) -> int | None:
    """The step of a checkpoint of that name; None for other names."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def best_of(folder: Path) -> Path:
    """The path of the newest best weights in a folder of checkpoints, whether or not they exist."""
    file, shards = folder / BestName.FILE, folder / BestName.FOLDER
    if not (shards / INDEX).exists():
        return file
    held = read_list(folder)
    listed = None if held is None or held["best"] is None else held["best"]["file"]
    return file if file.exists() and listed != BestName.FOLDER else shards


# --- writing


def marked(record: Record, mark: Mapping[str, Any]) -> Record:
    """The record with the description `mark` in its metadata."""
    return Record(
        {name: record[name] for name in record},
        {**record.metadata, _MARK: json.dumps(to_json({"format": FORMAT, **mark}))},
        aliases=record.aliases,
        positional=record.positional,
        header=record.header,
        unreadable=record.unreadable,
    )


def save(record: Record, path: Path, mark: Mapping[str, Any], precision: Precision) -> tuple[dict[str, Any], str]:
    """Write a record with the description `mark`, atomically and durably.

    Returns its line in the list, and a text about values lost to a narrow precision ("" if none).
    """
    lost: Underflow = []
    SafetensorsRecorder(PrecisionSettings()).save(marked(record, mark).with_precision(precision, lost), path)
    dtypes = " and ".join(dict.fromkeys(str(dtype) for _, dtype, _ in lost))
    message = underflow_message(f"{sum(count for *_, count in lost)} values", dtypes) if lost else ""
    return line_of(path, mark), message


def line_of(path: Path, mark: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a file in the list."""
    checked = path / INDEX if path.is_dir() else path  # which has the checksums of all other files in it
    state = checked.stat()
    size = sum([file.stat().st_size for file in path.iterdir()]) if path.is_dir() else state.st_size
    return {
        "file": path.name, **mark, "time": datetime.fromtimestamp(state.st_mtime, UTC).isoformat(timespec="seconds"),
        "size": size, "crc32": f"{_crc32_of(checked):08x}",
    }  # fmt: skip


def _crc32_of(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):  # blocks too small for several threads, which the training needs
            total = crc32(block, total)
    return total


class Catalog:
    """`checkpoints.json`: the checkpoints from the oldest to the newest, the best, and all files that were written.

    A file is listed under "files" before it is written, and under "checkpoints" when it is complete. Only listed files
    are ever deleted.
    """

    def __init__(self, folder: Path) -> None:
        held = read_list(folder) or {}
        self.folder = folder
        self.checkpoints: list[dict[str, Any]] = held.get("checkpoints", [])
        self.files: list[str] = held.get("files", [])
        self.best: dict[str, Any] | None = held.get("best")

    def announce(self, name: str) -> None:
        """List a file that is going to be written."""
        if name not in self.files:
            self._write(self.checkpoints, [*self.files, name], self.best)

    def add(self, line: dict[str, Any], keep: int | None) -> None:
        """List a checkpoint that is complete, and delete the older ones that are not kept."""
        lines = [*(one for one in self.checkpoints if one["file"] != line["file"]), line]
        lines = self._flagged([one for one in lines if (self.folder / one["file"]).exists()])
        kept = [one for number, one in enumerate(lines) if keep is None or number >= len(lines) - keep or "best" in one]
        self._write(kept, self.files, self.best)
        names = {BestName.FILE, BestName.FOLDER, *(one["file"] for one in kept)}
        for name in self.files:
            # Others in the list are left from a killed process, or of steps that a resumed training has taken back.
            if name not in names:
                with contextlib.suppress(OSError):  # then it stays in the list, and the next call tries again
                    _delete(self.folder, name)

    def set_best(self, line: dict[str, Any]) -> None:
        """List the best, which is complete."""
        self._write(self.checkpoints, self.files, line)

    def _flagged(self, lines: list[dict[str, Any]], best: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        best = best or self.best
        step = None if best is None else best["step"]
        plain = [{key: value for key, value in one.items() if key != "best"} for one in lines]
        return [{**one, "best": True} if one["step"] == step else one for one in plain]

    def _write(self, lines: list[dict[str, Any]], files: list[str], best: dict[str, Any] | None) -> None:
        lines = self._flagged(lines, best)
        new = files[-1:] if files != self.files else []
        files = [name for name in files if name in new or os.path.lexists(self.folder / name)]
        listed: dict[str, Any] = {
            "phlox": __version__,
            "format": FORMAT,
            "best": best,
            "checkpoints": lines,
            "files": files,
        }
        path = self.folder / LIST
        with atomic_write(path) as file:
            file.write(json.dumps(to_json(listed), indent=1, allow_nan=False).encode() + b"\n")
        self.checkpoints, self.files, self.best = lines, files, best


def _delete(folder: Path, name: str) -> None:
    if not (folder / name).is_dir():
        (folder / name).unlink()
        return
    from phlox.distributed.checkpoints.storage import LocalFolder

    LocalFolder(folder).remove_step(name)


# --- reading


def read_list(folder: Path) -> dict[str, Any] | None:
    """The list of a folder; None if it is missing or damaged: then the names of the files are used.

    Raises RunError for one that a newer Phlox has written.
    """
    try:
        held = from_json(json.loads((folder / LIST).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(held, dict):
        _check_format(cast("dict[str, Any]", held), folder / LIST)
    return cast("dict[str, Any]", held) if _is_list(held) else None


def _is_list(held: Any) -> bool:
    try:
        lines = [*held["checkpoints"], *([] if held["best"] is None else [held["best"]])]
        steps = all(isinstance(one["step"], int) and Path(one["file"]).name == one["file"] for one in lines)
        return steps and all(Path(name).name == name for name in held["files"])
    except (KeyError, TypeError):
        return False


def _check_format(held: Mapping[str, Any], path: Path) -> None:
    version = held.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise RunError(
            f"{path}: has version {version} of checkpoints, of a newer Phlox; this one ({__version__}) reads versions "
            f"up to {FORMAT}: install a newer one"
        )


def mark_of(record: Record, path: Path) -> dict[str, Any]:
    """The description of a file; empty if it is no checkpoint. RunError if a newer version of Phlox wrote it."""
    try:
        mark = from_json(json.loads(record.metadata[_MARK]))
    except (KeyError, ValueError, RecursionError):
        return {}
    if not isinstance(mark, dict):
        return {}
    _check_format(cast("dict[str, Any]", mark), path)
    return cast("dict[str, Any]", mark)


def whole(path: Path) -> Record:
    """The record of a file, after all its checksums were verified.

    For a folder that several processes have written, the index and the sizes of the files are checked; each process
    verifies the parts that it reads later.

    Raises RecordError, with the reason, if it is damaged, and RunError if a newer version of Phlox wrote it.
    """
    if path.is_dir():
        record = load(path)
        mark_of(record, path)
        return record
    try:
        record = SafetensorsRecorder().load(path)
    except RecordError as error:
        if isinstance(error.__cause__, NewerSchemaError):
            raise RunError(f"{path}: {error.__cause__}") from error
        raise
    mark_of(record, path)
    for entry in record.tensors.values():
        entry.tensor.read()
    return record


def place(path: str | os.PathLike[str]) -> Path:
    """The folder of the checkpoints of a run folder, or the folder or file itself. RunError if there is none."""
    given = Path(path)
    if (given / FOLDER).is_dir():
        return given / FOLDER
    if os.path.lexists(given):
        return given
    try:
        near = nearest(given.name, [entry.name for entry in given.parent.iterdir()])
    except OSError:
        near = None
    raise RunError(f"{given}: there is no such run{f'; did you mean {given.with_name(near)}?' if near else ''}")


def holds_several(path: Path) -> bool:
    """Is it a folder of checkpoints, and not one that is a checkpoint itself?"""
    return path.is_dir() and not (path / INDEX).exists()


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a folder: first those of later steps than the list has, then the list's, then others."""
    found = {
        entry.name: step
        for entry in folder.iterdir()
        if (step := step_of(entry.name)) is not None and (not entry.is_dir() or (entry / INDEX).exists())
    }
    held = read_list(folder)
    listed = [one["file"] for one in reversed([] if held is None else held["checkpoints"]) if one["file"] in found]
    last = found[listed[0]] if listed else -1
    others = sorted(found.keys() - set(listed), key=lambda name: found[name], reverse=True)
    later = [name for name in others if found[name] > last]
    return [folder / name for name in [*later, *listed, *(name for name in others if name not in later)]]


def newest_whole(folder: Path) -> tuple[Path, Record]:
    """The newest undamaged checkpoint of a folder, with a `RunWarning` for each newer one that is damaged.

    Raises RunError, with the reason for each file, if there is none.
    """
    damaged: list[str] = []
    for path in newest_first(folder):
        try:
            record = whole(path)
        except (RecordError, OSError) as error:
            damaged.append(str(error))
            continue
        if damaged:
            reasons = "; ".join(damaged)
            warnings.warn(f"{path.name} is used, since what is newer is damaged: {reasons}", RunWarning, stacklevel=3)
        return path, record
    if not damaged:
        raise RunError(f"{folder}: has no checkpoints (step-...); give another folder, or train anew")
    raise RunError(f"{folder}: has no checkpoint that is whole:\n  " + "\n  ".join(damaged))


def later_than(folder: Path, step: int) -> Iterator[Path]:
    """The checkpoints of a folder that are of later steps."""
    return (path for path in newest_first(folder) if (step_of(path.name) or 0) > step)
