"""`Catalog`: the list of the checkpoints in a folder, and of the best weights."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from phlox.errors import RunError
from phlox.record.io.files import sync_folder
from phlox.record.io.links import is_own_folder
from phlox.train.observers.folder.list_file import ListFile, read_list_file
from phlox.version import __version__

LIST = "checkpoints.json"
FORMAT = 1
"""The version of the list, and of the description in a file."""


class BestName:
    """The names of the best weights: of a file, or of a folder that several processes wrote."""

    FILE, FOLDER = "best.safetensors", "best"
    _OF_STEP = re.compile(r"best(-\d{8,})?(\.safetensors)?")

    @staticmethod
    def of(step: int | None, *, in_shards: bool) -> str:
        """The name of the best weights of a step or, for None, of the very best weights."""
        return f"best{'' if step is None else f'-{step:08d}'}{'' if in_shards else '.safetensors'}"

    @classmethod
    def fits(cls, name: str) -> bool:
        """Is this a name of best weights?"""
        return cls._OF_STEP.fullmatch(name) is not None


class Ranking(NamedTuple):
    """The order of values of several steps."""

    mode: Literal["min", "max"]
    ties: Literal["first", "last"] = "first"
    """Which of several equal values is better?"""
    keep: int = 1
    """How many are kept."""

    def of(self, entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries (dicts with a value and a step) to keep, the best first.

        >>> Ranking("max", "last", 2).of({"value": value, "step": step} for step, value in enumerate([0.5, 0.7, 0.7]))
        [{'value': 0.7, 'step': 2}, {'value': 0.7, 'step': 1}]
        """

        def key(entry: Mapping[str, Any]) -> tuple[float, int]:
            value, step = entry["value"], entry["step"]
            return (value if self.mode == "min" else -value, step if self.ties == "first" else -step)

        return sorted(entries, key=key)[: self.keep]


class Catalog:
    """`checkpoints.json`: the checkpoints from the oldest to the newest, the best, and all files that were written.

    A file is listed under "files" before it is written, and under "checkpoints" when it is complete. Only listed files
    are ever deleted. The cost of listing a checkpoint does not grow with the number of those that are kept.
    """

    def __init__(self, folder: Path) -> None:
        catalog = read_list(folder) or {}
        self.folder = folder
        self.checkpoints: list[dict[str, Any]] = catalog.get("checkpoints", [])
        self.files: list[str] = catalog.get("files", [])
        self.bests: list[dict[str, Any]] = bests_of(catalog)
        """The lines of the best weights, the best first."""
        self._list = ListFile(folder / LIST)
        self._index()

    def _index(self) -> None:
        self._names = {*self.files}
        self._steps = {line["step"] for line in self.checkpoints}
        self._best_names = {name for name in self.files if BestName.fits(name)}

    def announce(self, name: str) -> None:
        """List a file before it is written."""
        if BestName.fits(name):
            self._best_names.add(name)  # a name may come back
        if name in self._names:
            return
        if not self._list.append({"file": name}):
            self._write(self.checkpoints, [*self.files, name], self.bests)
            return
        self.files.append(name)
        self._names.add(name)

    def complete(self) -> None:
        """Write the whole list if there are changes that are only beside it."""
        if self._list.is_behind:
            self._write(self.checkpoints, self.files, self.bests)

    def add(self, line: dict[str, Any], keep: int | None) -> None:
        """List a checkpoint that is complete, and delete the older ones that are not kept."""
        if keep is None and line["step"] not in self._steps and self._list.append({"checkpoint": line}):
            self.checkpoints.append(line)
            self._steps.add(line["step"])
            return
        lines = [*(x for x in self.checkpoints if x["file"] != line["file"]), line]
        lines = _flagged([x for x in lines if (self.folder / x["file"]).exists()], self.bests)
        kept = [x for number, x in enumerate(lines) if keep is None or number >= len(lines) - keep or "best" in x]
        self._write(kept, self.files, self.bests)
        names = {x[key] for x in kept for key in ("file", "history") if key in x}
        for name in self.files:
            # Other listed files are of a killed process, or of steps that a resumed training has undone.
            if name not in names and not BestName.fits(name):
                with contextlib.suppress(OSError):  # then it stays in the list, and the next call tries again
                    _delete(self.folder, name)

    def add_best(self, line: dict[str, Any], ranking: Ranking) -> None:
        """List weights that are complete, and delete those that are no longer among the best."""
        others = [other for other in self.bests if other["file"] != line["file"] and other["step"] != line["step"]]
        self.set_bests(ranking.of([*others, line]))

    def set_bests(self, lines: list[dict[str, Any]]) -> None:
        """List the best weights, rename the very best, and delete the others."""
        self._list_bests(lines)
        self._name_best()
        kept = {best["file"] for best in self.bests}
        for name in sorted(self._best_names - kept):
            with contextlib.suppress(OSError):
                _delete(self.folder, name)
            if not os.path.lexists(self.folder / name):
                self._best_names.discard(name)

    def _name_best(self) -> None:
        """Rename the very best weights to the name without a step. New names are listed before files are renamed."""
        if not self.bests or self.bests[0]["file"] in (BestName.FILE, BestName.FOLDER):
            return
        best = self.bests[0]
        in_shards = (self.folder / best["file"]).is_dir()
        target = self.folder / BestName.of(None, in_shards=in_shards)
        new = {best["file"]: target.name}
        for other in self.bests:
            if other["file"] == target.name:
                new[target.name] = BestName.of(other["step"], in_shards=in_shards)
                self.announce(new[target.name])
                target.rename(self.folder / new[target.name])
        if target.is_dir():  # a rename does not replace a folder
            _delete(self.folder, target.name)
        self.announce(target.name)
        (self.folder / best["file"]).replace(target)
        sync_folder(self.folder)
        self._list_bests([{**other, "file": new.get(other["file"], other["file"])} for other in self.bests])

    def _list_bests(self, lines: list[dict[str, Any]]) -> None:
        if self._list.append({"bests": lines}):
            self.bests = lines
        else:
            self._write(self.checkpoints, self.files, lines)

    def _write(self, lines: list[dict[str, Any]], files: list[str], bests: list[dict[str, Any]]) -> None:
        lines = _flagged(lines, bests)
        new = files[-1:] if files != self.files else []
        files = [name for name in files if name in new or os.path.lexists(self.folder / name)]
        listed: dict[str, Any] = {
            "phlox": __version__,
            "format": FORMAT,
            "best": bests[0] if bests else None,
            "bests": bests,
            "checkpoints": lines,
            "files": files,
        }
        self._list.write(listed, len(lines) + len(files))
        self.checkpoints, self.files, self.bests = lines, files, bests
        self._index()


def _delete(folder: Path, name: str) -> None:
    if not is_own_folder(folder / name):
        (folder / name).unlink()
        return
    from phlox.distributed.checkpoints.storage import LocalFolder

    LocalFolder(folder).remove_step(name)


def read_list(folder: Path) -> dict[str, Any] | None:
    """The list of a folder; None if it is missing or damaged, so that callers go by the names of files.

    Raises RunError for a list that a newer Phlox has written.
    """
    try:
        catalog, changes = read_list_file(folder / LIST)
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(catalog, dict):
        check_format(cast("dict[str, Any]", catalog), folder / LIST)
    if not _is_list(catalog):
        return None
    written = cast("dict[str, Any]", catalog)
    try:
        changed = _changed(written, changes)
    except (AttributeError, KeyError, TypeError):
        return written
    return changed if _is_list(changed) else written


def _changed(catalog: dict[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
    """A list with the changes that were made since it was written."""
    lines, files, bests = [*catalog["checkpoints"]], [*catalog["files"]], bests_of(catalog)
    for change in changes:
        lines += [change["checkpoint"]] if "checkpoint" in change else []
        files += [change["file"]] if "file" in change else []
        bests = change.get("bests", bests)
    lines = _flagged(lines, bests)
    return {**catalog, "best": bests[0] if bests else None, "bests": bests, "checkpoints": lines, "files": files}


def _flagged(lines: list[dict[str, Any]], bests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of checkpoints, of which those at the best values say so."""
    steps = {line["step"] for line in bests}
    plain = [{key: value for key, value in line.items() if key != "best"} for line in lines]
    return [{**line, "best": True} if line["step"] in steps else line for line in plain]


def bests_of(catalog: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of the best weights in a list, the best first; an older list has only one."""
    best = catalog.get("best")
    return catalog.get("bests", [] if best is None else [best])


def _is_list(catalog: Any) -> bool:
    try:
        lines = [*catalog["checkpoints"], *bests_of(catalog)]
        steps = all(isinstance(line["step"], int) and Path(line["file"]).name == line["file"] for line in lines)
        steps = steps and all(isinstance(line["value"], (int, float)) for line in bests_of(catalog))
        return steps and all(Path(name).name == name for name in catalog["files"])
    except (KeyError, TypeError):
        return False


def check_format(description: Mapping[str, Any], path: Path) -> None:
    """Raise RunError for a list, or the description in a file, that a newer Phlox has written."""
    version = description.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise RunError(
            f"{path}: has version {version} of checkpoints, of a newer Phlox; this one ({__version__}) reads versions "
            f"up to {FORMAT}: install a newer one"
        )
