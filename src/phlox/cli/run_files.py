"""Reading the files of a run, as far as they exist and are complete, for `phlox runs` and `phlox watch`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from phlox.errors import RunError
from phlox.train.events import EpochReport, Values
from phlox.train.observers.views.text import Best, BestValues, epoch_label

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MANIFEST, METRICS, SETTINGS = "run.json", "metrics.jsonl", "config.json"
_DEPTH = 5
"""The number of levels of folders that are searched for runs."""
_OLD_NAMES = {"train_": "train/", "held_out_": "validation/"}


@dataclass
class Run:
    """A run, as described by its files."""

    path: Path
    status: str = "finished"
    """The status in `run.json` ("running", "finished", "interrupted", "failed"), or "killed", or "unknown"."""
    reason: str = ""
    """Why it ended, if that is written."""
    epochs: int | None = None
    """The planned number of epochs, if that is written."""
    rows: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """The values of each epoch, and of some steps between."""
    settings: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    """What is missing or cannot be read."""

    @property
    def seconds(self) -> float:
        """The time of all epochs, and of the steps since."""
        last = len(self.rows) - 1
        return sum(row.get("seconds", 0.0) for i, row in enumerate(self.rows) if i == last or self.is_epoch(i))

    def is_epoch(self, index: int) -> bool:
        """Is this the row of the end of an epoch? Rows within the next epoch have the same number of ended epochs."""
        before = self.rows[index - 1].get("epoch", index) if index else 0
        return self.rows[index].get("epoch", index + 1) > before

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch, 0 before the first."""
        return int(self.rows[-1].get("epoch", len(self.rows))) if self.rows else 0

    def best(self) -> dict[str, Best]:
        """The best values of the training and the validation."""
        values = BestValues()
        for row in self.rows:
            epoch = epoch_label(int(row.get("epoch", 0)), None)
            values.add(epoch, {name: v for name, v in row.items() if name.startswith(("train/", "validation/"))})
        return values.all()

    def report(self, index: int) -> EpochReport:
        """A row as the report of an epoch."""
        row = self.rows[index]
        seconds = row.get("seconds", 0.0)
        rates = {name.removeprefix("lr/"): value for name, value in row.items() if name.startswith("lr/")}
        return EpochReport(
            int(row.get("epoch", index + 1)), int(row.get("step", 0)), rates or row.get("lr", 0.0),
            _nested(row, "train/"), _nested(row, "validation/"), seconds,
            round(row.get("rows_per_second", 0.0) * seconds),
        )  # fmt: skip


def find_runs(folder: Path) -> list[Path]:
    """The folders of runs under a folder, or that folder itself, in the order of their names."""
    runs: list[Path] = []
    for base, folders, files in os.walk(folder):
        path = Path(base)
        if MANIFEST in files or METRICS in files:
            runs.append(path)
            folders.clear()  # folders inside of a run belong to it
        elif len(path.relative_to(folder).parts) >= _DEPTH:
            folders.clear()
        folders.sort()
    return runs


def read_run(path: Path) -> Run:
    """Read the files of a run. Missing files are no error; `notes` lists them."""
    run = Run(path)
    manifest = _json(path / MANIFEST, run)
    config = _json(path / SETTINGS, run)
    run.rows = [*_rows(path / METRICS, run)]
    run.settings = dict(_settings(config)) or _chosen(manifest.get("settings"))
    if run.settings and not config and f"no {SETTINGS}" in run.notes:
        run.notes.remove(f"no {SETTINGS}")
    for source in (config, manifest):
        if isinstance(epochs := source.get("epochs"), int):
            run.epochs = epochs
    status = manifest.get("status")
    is_partial = path.name.endswith(".partial")  # earlier versions named incomplete runs like this
    if not manifest:
        run.status = "unknown"
    else:
        run.status = status if isinstance(status, str) else "running" if is_partial else "finished"
    if run.status == "running" and _is_free(path):
        run.status = "killed"
    sessions = manifest.get("sessions")
    session: Any = cast("list[Any]", sessions)[-1] if isinstance(sessions, list) and sessions else None
    reason = cast("dict[str, Any]", session).get("reason") if isinstance(session, dict) else None
    run.reason = reason if isinstance(reason, str) and not reason.startswith(KeyboardInterrupt.__name__) else ""
    return run


def locate(path: Path) -> Path:
    """The folder of a run; one of an earlier version may be in `NAME.partial`. `RunError` if there is none."""
    partial = path.with_name(path.name + ".partial") if path.name else path
    for candidate in (path, partial):
        if (candidate / MANIFEST).is_file() or (candidate / METRICS).is_file():
            return candidate
    if path.is_dir():
        raise RunError(f"{path}: has neither {MANIFEST} nor {METRICS}, so it is not the folder of a run; give another")
    raise RunError(f"{path}: there is no such run; give the folder of one (`phlox runs FOLDER` lists them)")


def _json(path: Path, run: Run) -> dict[str, Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        run.notes.append(f"no {path.name}")
        return {}
    except (OSError, ValueError, RecursionError):
        run.notes.append(f"{path.name} cannot be read")
        return {}
    if not isinstance(content, dict):
        run.notes.append(f"{path.name} is no object")
        return {}
    return cast("dict[str, Any]", content)


def _rows(path: Path, run: Run) -> Iterator[dict[str, float]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        run.notes.append(f"no {path.name}")
        return
    except OSError:
        run.notes.append(f"{path.name} cannot be read")
        return
    unread = 0
    for line in filter(None, map(bytes.strip, lines)):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            values = cast("dict[str, Any]", row)
            yield {_name(k): v for k, v in values.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        else:
            unread += 1
    if unread:
        run.notes.append(f"{unread} {'line' if unread == 1 else 'lines'} of {path.name} cannot be read")


def _name(name: str) -> str:
    """The name of a value; runs of earlier versions have other names."""
    for old, new in _OLD_NAMES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _nested(row: Mapping[str, float], prefix: str) -> Values:
    """The values below a prefix; those that are numbered as a list. The entries of matrices are left out."""
    values: Values = {}
    for name, value in row.items():
        if name.startswith(prefix):
            path, _, item = name.removeprefix(prefix).rpartition("/")
            if item.isdecimal() and path.rpartition("/")[2].isdecimal():
                continue
            if item.isdecimal() and path:
                values.setdefault(path, []).append(value)
            else:
                values[name.removeprefix(prefix)] = value
    return values


def _settings(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, part in cast("dict[str, Any]", value).items():
            yield from _settings(part, f"{name}.{key}" if name else key)
    elif name:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _chosen(settings: Any) -> dict[str, str]:
    """The settings of a learner; a seed that nobody chose is left out."""
    values = dict(_settings(settings))
    return {key: text for key, text in values.items() if key != "seed" or len(text) < len(str(2**32))}


def differing(runs: list[Run]) -> list[str]:
    """The settings that are not the same in all runs that have settings."""
    with_settings = [run.settings for run in runs if run.settings]
    names = dict.fromkeys(name for settings in with_settings for name in settings)
    return [name for name in names if len({settings.get(name) for settings in with_settings}) > 1]


def _is_free(folder: Path) -> bool:
    """Is no process writing to the folder? A process that writes holds a lock on it. False if that is unknown."""
    if fcntl is None:
        return False
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
