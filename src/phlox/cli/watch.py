"""`phlox watch`: follows a run in the terminal."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

from phlox.cli.command import DONE, Command
from phlox.cli.run_files import Run, locate, read_run
from phlox.errors import ExtraNotInstalledError
from phlox.train.events import flattened
from phlox.train.observers.views.screen import Screen
from phlox.train.observers.views.text import BestValues, Snapshot, clock, epoch_label, figures
from phlox.train.observers.views.view import plain_line, plain_parts


def interval(text: str) -> float:
    """A number of seconds, as the type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.05 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.05 to 3600")
    return number


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("path", metavar="RUN", help="the folder of a run, running or ended")
    parser.add_argument(
        "--interval", type=interval, default=1.0, metavar="S", help="seconds between two updates (default: 1)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    path = Path(options.path)
    locate(path)  # an error before anything is drawn
    watcher = _Watcher(_screen())
    try:
        while True:
            latest = read_run(locate(path))
            watcher.show(latest)
            if latest.status != "running":
                break
            time.sleep(options.interval)
    finally:
        watcher.close()
    return DONE


def _screen() -> Screen | None:
    if not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return None
    try:
        return Screen(sys.stdout)
    except ExtraNotInstalledError:
        return None


class _Watcher:
    """Shows the new rows of a run."""

    def __init__(self, screen: Screen | None) -> None:
        self.screen = screen
        self._rows, self._is_open = 0, False
        self._best = BestValues()

    def show(self, run: Run) -> None:
        """Show what was added since the last call."""
        if len(run.rows) < self._rows:  # another run has replaced it
            self._rows, self._best = 0, BestValues()
        new = range(self._rows, len(run.rows))
        self._rows = len(run.rows)
        if self.screen is not None and not self._is_open:
            self.screen.open(Snapshot(epochs=run.epochs, doing="starting"))
            self._is_open = True
        for index in new:
            self._epoch(run, index)
        if self.screen is not None:
            self.screen.show(self._snapshot(run))
        elif run.status != "running":
            print(plain_line(_ending(run)), flush=True)

    def close(self) -> None:
        """Put the cursor back."""
        if self.screen is not None and self._is_open:
            self.screen.close()

    def _epoch(self, run: Run, index: int) -> None:
        report = run.report(index)
        values = flattened("train", report.train) | flattened("validation", report.validation)
        best = self._best.add(epoch_label(report.epoch, None), values)
        if run.is_epoch(index):
            label = epoch_label(report.epoch, run.epochs)
        elif report.validation:
            label = f"{epoch_label(report.epoch + 1, run.epochs)} step {report.step:,}"
        else:
            return  # a step within an epoch: the last one is below the table
        if self.screen is not None:
            self.screen.epoch(label, report.train, report.validation, report.seconds or None, best)
        else:
            print(plain_line(*plain_parts(label, report, "rows")), flush=True)

    def _snapshot(self, run: Run) -> Snapshot:
        last = run.report(-1) if run.rows else None
        left = None
        if run.epochs is not None and run.rows:
            left = max(run.epochs - run.last_epoch, 0) * run.seconds / len(run.rows)
        is_running = run.status == "running"
        return Snapshot(
            epoch=run.last_epoch if last else 1, epochs=run.epochs, step=run.last_epoch if is_running else 0,
            steps=run.epochs, doing="" if last else "waiting for the first epoch",
            values=last.train if last and figures(last.train) else {}, rate=last.rate if last and last.rows else None,
            elapsed=run.seconds, left=left, lr=last.lr if last else None, best=self._best.shown(),
            ended=None if is_running else _ending(run),
        )  # fmt: skip


def _ending(run: Run) -> str:
    epochs = f"{run.last_epoch} {'epoch' if run.last_epoch == 1 else 'epochs'}"
    return f"{run.status} after {epochs}, {clock(run.seconds)}" + (f": {run.reason}" if run.reason else "")


COMMAND = Command(
    description="Follow a run: a line for each epoch, and below them the current epoch. It ends when the run ends, or "
    "with Ctrl-C, which does not stop the run.",
    arguments=arguments,
    run=run,
)
