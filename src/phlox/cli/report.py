"""`phlox report`: runs side by side in one HTML page: their values, curves and the settings that differ."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from pathlib import Path

from phlox.cli.command import DONE, Command
from phlox.cli.run_files import Run, differing, find_runs, locate, read_run
from phlox.cli.runs import by_value, table_of
from phlox.errors import RunError
from phlox.host.html import document, escape
from phlox.host.page import Page, Part, Raw, Row, facts
from phlox.host.svg import Curve
from phlox.host.text import count
from phlox.train.observers.views.plots import Plot

_RUNS = 12
"""The most runs in one plot: more curves cannot be told apart."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the folder of a run, or a folder with runs in it")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page to write (default: report.html)")
    parser.add_argument("--sort", metavar="NAME", help="the best run first, by this value, such as validation/accuracy")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    paths = [path for name in options.runs for path in _paths(Path(name))]
    runs = [read_run(path) for path in dict.fromkeys(path.absolute() for path in paths)]
    if options.sort is not None:
        runs = by_value(runs, options.sort)
    out = Path(options.out)
    if not out.parent.is_dir():
        raise RunError(f"{out}: there is no folder {out.parent}; make it, or give another --out")
    document("Runs", _page(runs, out, options.sort), out)
    print(f"{out}: {count(len(runs), 'run')}")
    return DONE


def _paths(path: Path) -> list[Path]:
    """The run in a folder, or the runs below it."""
    return find_runs(path) or [locate(path)]


def _page(runs: list[Run], out: Path, sort: str | None) -> Page:
    common = Path(os.path.commonpath([run.path.parent for run in runs]))
    names = [str(run.path.relative_to(common)) for run in runs]
    table = table_of(runs, common, differing(runs), sort)
    plots = [plot.figure() for plot in _plots(runs[:_RUNS], names)]
    hint = f"The curves of the first {_RUNS} runs of {len(runs)}." if len(runs) > _RUNS else ""
    details = [
        Page(name, [run.status], _details(run, out), is_open=False) for name, run in zip(names, runs, strict=True)
    ]
    return Page("", [count(len(runs), "run")], [table, hint, Row(plots), *details])


def _plots(runs: list[Run], names: list[str]) -> Iterator[Plot]:
    """A plot of each value, those of the validation first, with a curve for each run that has it."""
    keys = dict.fromkeys(key for run in runs for row in run.rows for key in row)
    shown = [key for key in keys if key.startswith(("validation/", "train/")) and not _is_entry(key)]
    for key in sorted(shown, key=lambda key: (not key.startswith("validation/"), "loss" not in key)):
        curves: list[Curve] = []
        for run, name in zip(runs, names, strict=True):
            rows = [row for index, row in enumerate(run.rows) if key in row and run.is_epoch(index)]
            if rows:
                curves.append(Curve(name, [row.get("epoch", math.nan) for row in rows], [row[key] for row in rows]))
        if curves:
            yield Plot(key, "epoch", curves)


def _is_entry(key: str) -> bool:
    """Is it the value of one class, or an entry of a matrix?"""
    return key.rpartition("/")[2].isdecimal()


def _details(run: Run, out: Path) -> list[Part]:
    own = run.path / "report.html"
    link = os.path.relpath(own, out.absolute().parent)
    parts: list[Part] = [Raw(f'<p><a href="{escape(link)}">its own report</a></p>')] if own.is_file() else []
    return [*parts, *run.notes, facts(run.settings.items())]


COMMAND = Command(
    description="Write one HTML page that shows runs side by side: a table with their best and last values and the "
    "settings that differ, and each value's curves in one plot.",
    arguments=arguments,
    run=run,
)
