"""The files of checkpoints: their names, what is in them, and the search for the newest undamaged one."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from phlox.errors import RecordError, RunError, RunWarning
from phlox.record import PrecisionSettings, Record, SafetensorsRecorder, load
from phlox.record.formats.assembled import Assembled
from phlox.record.formats.parts import INDEX
from phlox.record.header import NewerSchemaError
from phlox.record.io.crc32 import crc32
from phlox.record.names import nearest
from phlox.record.precision import Precision, Underflow, underflow_message
from phlox.record.values import from_json, to_json
from phlox.train.observers.checkpoints.catalog import FORMAT, BestName, Ranking, bests_of, check_format, read_list
from phlox.train.observers.checkpoints.history_file import Position
from phlox.train.observers.checkpoints.history_file import read as read_history
from phlox.train.state import COUNTS, LINES, LOG, described

FOLDER = "checkpoints"
_MARK = "checkpoint"
"""The name of a file's description, in the metadata of its record."""
_NAME = re.compile(r"step-(\d{8,})(\.safetensors)?")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """A checkpoint to write."""

    name: str
    record: Record
    mark: Mapping[str, Any]
    seconds: float
    is_best: bool = False
    history: Position | None = None
    """The part of the history file that belongs to the checkpoint."""

    def without_record(self) -> Job:
        """The same job, without its tensors."""
        return replace(self, record=Record({}))

    def marked(self) -> Record:
        """The record with its description, and with the position of its history."""
        record = self.record if self.history is None else self.record.with_entries({LOG: self.history.value})
        return marked(record, self.mark)

    def line(self, path: Path) -> dict[str, Any]:
        """The line of the checkpoint in the list, once its file is complete."""
        history = {} if self.history is None or not self.history.lines else {"history": self.history.file.path.name}
        return {**line_of(path, self.mark), **history, "seconds": self.seconds}


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
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


# --- writing


def marked(record: Record, mark: Mapping[str, Any]) -> Record:
    """The record with the description `mark` in its metadata."""
    return record.with_entries({}, {**record.metadata, _MARK: json.dumps(to_json({"format": FORMAT, **mark}))})


def save(record: Record, path: Path, precision: Precision) -> str:
    """Write a record, atomically and durably; returns a text about values lost to a narrow precision ("" if none)."""
    lost: Underflow = []
    recorder = SafetensorsRecorder(PrecisionSettings())
    recorder.follows_links = False
    recorder.save(record.with_precision(precision, lost), path)
    dtypes = " and ".join(dict.fromkeys(str(dtype) for _, dtype, _ in lost))
    return underflow_message(f"{sum(count for *_, count in lost)} values", dtypes) if lost else ""


def line_of(path: Path, mark: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a file in the list."""
    checked = path / INDEX if path.is_dir() else path  # the index has the checksums of all other files
    state = checked.stat()
    size = sum([file.stat().st_size for file in path.iterdir()]) if path.is_dir() else state.st_size
    return {
        "file": path.name, **mark, "time": datetime.fromtimestamp(state.st_mtime, UTC).isoformat(timespec="seconds"),
        "size": size, "crc32": f"{_crc32_of(checked):08x}",
    }  # fmt: skip


def _crc32_of(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):  # small blocks, so that the training keeps the other threads
            total = crc32(block, total)
    return total


# --- reading


def mark_of(record: Record, path: Path) -> dict[str, Any]:
    """The description of a file; empty if it is no checkpoint. RunError if a newer version of Phlox wrote it."""
    try:
        mark = from_json(json.loads(record.metadata[_MARK]))
    except (KeyError, ValueError, RecursionError):
        return {}
    if not isinstance(mark, dict):
        return {}
    check_format(cast("dict[str, Any]", mark), path)
    return cast("dict[str, Any]", mark)


def opened(path: Path) -> Record:
    """The record of a file, or of a folder that several processes have written; its checksums were not verified.

    Raises RecordError if it cannot be read, and RunError if a newer version of Phlox wrote it.
    """
    try:
        return load(path) if path.is_dir() else SafetensorsRecorder().load(path)
    except RecordError as error:
        if isinstance(error.__cause__, NewerSchemaError):
            raise RunError(f"{path}: {error.__cause__}") from error
        raise


def whole(path: Path, rank: int = 0, size: int = 1) -> Record:
    """The record of a checkpoint, after its checksums were verified.

    Args:
        path: a file, or a folder that several processes have written.
        rank, size: each of `size` processes verifies its share; together they verify the whole checkpoint.

    Raises RecordError, with the reason, if the checkpoint is damaged, and RunError if a newer Phlox wrote it.
    """
    record = opened(path)
    mark_of(record, path)
    loads = [0] * size
    for nbytes, read in sorted(_pieces(record), key=lambda piece: -piece[0]):  # alike in all processes
        least = loads.index(min(loads))
        loads[least] += nbytes
        if least == rank:
            read()
    return record


def _pieces(record: Record) -> Iterator[tuple[int, Callable[[], object]]]:
    """For each tensor, or each part of an assembled one: its bytes, and a function that verifies it without a copy."""
    for entry in record.tensors.values():
        tensor = entry.tensor
        source = tensor.source
        if not isinstance(source, Assembled):
            yield tensor.nbytes, tensor.read
            continue
        for part in source.parts:
            yield math.prod(part.shape) * source.dtype.itemsize, partial(source.part, part.index)


def with_history(record: Record, path: Path, *, warns: bool = True) -> Record:
    """The record of the checkpoint at a path with its history, which is in a file beside it.

    If the history is incomplete and `warns` is set, a `RunWarning` says what is missing and why.
    """
    value = record.values.get(LOG)
    if not isinstance(value, Mapping) or "file" not in value:
        return record
    history, problem = read_history(path.parent, cast("Mapping[str, Any]", value))
    if problem and warns:
        counts: Mapping[str, int] = history[COUNTS]
        missing = {name: count - history[LINES].get(name, "").count("\n") for name, count in counts.items()}
        warnings.warn(
            f"{path}: of its history, {described(missing)} are lost: {problem}. Everything else is complete",
            RunWarning,
            stacklevel=3,
        )
    return record.with_entries({LOG: history})


def checkpoint_path(path: str | os.PathLike[str]) -> Path:
    """The folder of the checkpoints of a run folder, or the folder or file itself. RunError if there is none."""
    folder = Path(path)
    if (folder / FOLDER).is_dir():
        return folder / FOLDER
    if os.path.lexists(folder):
        return folder
    try:
        near = nearest(folder.name, [entry.name for entry in folder.parent.iterdir()])
    except OSError:
        near = None
    raise RunError(f"{folder}: there is no such run{f'; did you mean {folder.with_name(near)}?' if near else ''}")


def holds_several(path: Path) -> bool:
    """Is it a folder of checkpoints, and not itself a checkpoint of several processes?"""
    return path.is_dir() and not (path / INDEX).exists()


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a folder: first those later than all listed ones, then the listed ones, then the others."""
    steps = {
        entry.name: step
        for entry in folder.iterdir()
        if (step := step_of(entry.name)) is not None and (not entry.is_dir() or (entry / INDEX).exists())
    }
    saved = read_list(folder)
    listed = [x["file"] for x in reversed([] if saved is None else saved["checkpoints"]) if x["file"] in steps]
    last = steps[listed[0]] if listed else -1
    others = sorted(steps.keys() - set(listed), key=lambda name: steps[name], reverse=True)
    later = [name for name in others if steps[name] > last]
    return [folder / name for name in [*later, *listed, *(name for name in others if name not in later)]]


def candidates(path: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in a run folder or a folder of checkpoints, see `newest_first`; or the path of a checkpoint.

    Raises RunError if there is none.
    """
    folder = checkpoint_path(path)
    if not holds_several(folder):
        return [folder]
    paths = newest_first(folder)
    if not paths:
        raise RunError(f"{folder}: has no checkpoints (step-...); give another folder, or begin a new training")
    return paths


def first_whole(
    paths: Sequence[Path],
    rank: int = 0,
    size: int = 1,
    agreed: Callable[[str | None], str | None] = lambda problem: problem,
) -> tuple[Path, Record]:
    """The first checkpoint that is not damaged; a `RunWarning` names the damage of those before it.

    Args:
        paths: the checkpoints, the same in all processes.
        rank, size: see `whole`.
        agreed: a function from the damage of a checkpoint that this process found (None if there is none) to the damage
            that any process found. Process 0 gives the warning.

    Raises RunError, with the reason for each, if all are damaged.
    """
    damaged: list[str] = []
    for path in paths:
        record, problem = None, None
        try:
            record = whole(path, rank, size)
        except (RecordError, OSError) as error:
            problem = str(error)
        problem = agreed(problem)
        if problem is not None or record is None:
            damaged.append(str(problem))
            continue
        if damaged and rank == 0:
            reasons = "; ".join(damaged)
            warnings.warn(
                f"{path.name} is used, because newer checkpoints are damaged: {reasons}", RunWarning, stacklevel=3
            )
        return path, record
    raise RunError(f"{paths[0].parent}: has no undamaged checkpoint:\n  " + "\n  ".join(damaged))


def best_files(folder: Path) -> list[Path]:
    """The files, or folders of several processes, with the best weights, listed or not."""
    return [
        entry for entry in sorted(folder.iterdir())
        if BestName.fits(entry.name) and (not entry.is_dir() or (entry / INDEX).exists())
    ]  # fmt: skip


def bests_in(folder: Path) -> list[Path]:
    """The best weights in a folder of checkpoints, the best first, by the descriptions in the files."""
    listed = {x["file"]: x for x in bests_of(read_list(folder) or {})}
    entries: list[dict[str, Any]] = []
    for path in best_files(folder):
        try:
            mark = mark_of(opened(path), path)
        except RecordError:
            mark = listed.get(path.name, {})
        entries.append({"path": path, "value": math.nan, "step": 0, **mark})
    names = [x["name"] for x in (*listed.values(), *entries) if "name" in x]
    rated = [x for x in entries if x.get("name") in names[:1] and isinstance(x["value"], (int, float))]
    ranked = Ranking(rated[0].get("mode", "min"), rated[0].get("ties", "first"), len(rated)).of(rated) if rated else []
    return [x["path"] for x in (*ranked, *(x for x in entries if x not in rated))]


def later_than(folder: Path, step: int) -> Iterator[Path]:
    """The checkpoints of a folder that are later than `step`."""
    return (path for path in newest_first(folder) if (step_of(path.name) or 0) > step)
