"""`phlox runs`: a table of the runs under a folder."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from phlox.cli.command import DONE, Command
from phlox.cli.records import plain
from phlox.cli.run_files import Run, differing, find_runs, read_run
from phlox.errors import RunError
from phlox.host.page import Page, Table
from phlox.host.text import terminal_width
from phlox.train.observers.views.text import amount, better, clock

_VALUES = 3
"""The number of values that have columns; `--json` has all."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="a folder with runs in it, at any depth up to 5")
    parser.add_argument(
        "--sort", metavar="NAME", help="show the best run first, by this value, such as validation/accuracy"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    folder = Path(options.folder)
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder; give one with runs in it")
    runs = [read_run(path) for path in find_runs(folder)]
    if not runs:
        raise RunError(f"{folder}: there are no runs in it: no folder with a run.json or a metrics.jsonl")
    if options.sort is not None:
        runs = by_value(runs, options.sort)
    settings = differing(runs)
    if options.json:
        print(json.dumps(plain([_as_json(r, folder) for r in runs]), indent=2, allow_nan=False))
    else:
        print(Page("", parts=[table_of(runs, folder, settings, options.sort)]).text(terminal_width()))
    return DONE


def by_value(runs: list[Run], name: str) -> list[Run]:
    """The runs with the best value first; those without one last."""
    values = [_value(r, name) for r in runs]
    if all(value is None for value in values):
        available = {key for r in runs for row in r.rows for key in row}
        names = sorted(key for key in available if not key.rpartition("/")[2].isdecimal())
        raise RunError(f"--sort {name}: no run has such a value; there are: {', '.join(names) or 'none'}")
    sign = -1.0 if better(name) == "max" else 1.0
    keys = [math.inf if value is None or math.isnan(value) else sign * value for value in values]
    return [runs[i] for i in sorted(range(len(runs)), key=keys.__getitem__)]


def _value(record: Run, name: str) -> float | None:
    """The best value of that name; the last one if the name does not tell whether larger is better."""
    best = record.best().get(name)
    return best.value if best is not None else record.rows[-1].get(name) if record.rows else None


def _shown(runs: list[Run], sort: str | None) -> list[str]:
    """The names of the values that have columns: first the one to sort by, then those of the validation."""
    names = dict.fromkeys([sort] if sort is not None else [])
    for prefix in ("validation/", "train/"):
        matching = {name: None for r in runs for row in r.rows for name in row if name.startswith(prefix)}
        if not [name for name in names if name != sort]:
            names |= dict.fromkeys(name for name in matching if not name.rpartition("/")[2].isdecimal())
    return [*names][:_VALUES]


def table_of(runs: list[Run], folder: Path, settings: list[str], sort: str | None) -> Table:
    """A row for each run, named by its path in the folder: its values, and these settings."""
    shown = _shown(runs, sort)
    heads = ["run", "status", "epochs", "time"]
    for name in shown:
        heads += [f"best {_short(name)}", "last"]
    rows: list[list[str]] = []
    for r in runs:
        best = r.best()
        of = f"/{r.epochs}" if r.epochs is not None else ""
        row = [_name(r, folder), r.status, f"{r.last_epoch}{of}", clock(r.seconds) if r.rows else ""]
        for name in shown:
            last = r.rows[-1].get(name) if r.rows else None
            row += [amount(name, best[name].value) if name in best else "", "" if last is None else amount(name, last)]
        notes = [r.reason.partition("\n")[0]] * bool(r.reason) + r.notes
        rows.append([*row, *(r.settings.get(name, "") for name in settings), "; ".join(notes)])
    if all(row[-1] == "no config.json" for row in rows):  # then the note tells nothing
        rows = [[*row[:-1], ""] for row in rows]
    heads += [*settings, "note"]
    values = range(2, 4 + 2 * len(shown))
    # The columns to leave out first if there is no room: settings (the last first), further values, time, loss, notes.
    spare = [*reversed(range(4 + 2 * len(shown), len(heads) - 1)), *reversed(values[4:]), 3, 5, len(heads) - 1]
    return Table(heads, rows, {*range(len(heads))} - {*values}, spare=spare)


def _name(r: Run, folder: Path) -> str:
    return str(r.path.relative_to(folder)) if r.path != folder else folder.name or str(folder)


def _short(name: str) -> str:
    part, _, value = name.partition("/")
    return f"val {value}" if part == "validation" else name


def _as_json(r: Run, folder: Path) -> dict[str, Any]:
    last = r.rows[-1] if r.rows else {}
    return {
        "name": _name(r, folder), "path": str(r.path), "status": r.status, "reason": r.reason or None,
        "epochs": r.last_epoch, "planned_epochs": r.epochs, "seconds": r.seconds,
        "best": {name: {"value": best.value, "epoch": int(best.epoch)} for name, best in r.best().items()},
        "last": last, "settings": r.settings, "notes": r.notes,
    }  # fmt: skip


COMMAND = Command(
    description="List the runs under a folder: their status, epochs, best and last values, and the settings that "
    "differ between them. Missing and incomplete files of a run are noted.",
    arguments=arguments,
    run=run,
)
