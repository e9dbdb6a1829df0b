"""Shows the progress of a training: a live bar on a terminal, otherwise one line for each epoch."""

from __future__ import annotations

import os
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from phlox.errors import ExtraNotInstalledError
from phlox.train.logger import EpochReport, Logger, Plan, StepReport

if TYPE_CHECKING:
    from rich.progress import Progress

_INTERVAL = 0.1
"""Seconds between two updates of the bar, because reading metrics waits for the engine."""
_BAR = 8
"""The smallest width of a bar, in columns of the terminal."""


def progress(stream: TextIO | None = None, *, unit: str = "rows") -> Logger:
    """A live bar if `stream` (standard output if None) is a terminal, otherwise one plain line for each epoch.

    Args:
        stream: the stream to write to.
        unit: what a row of a batch is, for the rate.

    Raises:
        ExtraNotInstalledError: `stream` is a terminal, and rich is not installed.
    """
    target = sys.stdout if stream is None else stream
    live = target.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return RichProgress(target, unit=unit) if live else PlainProgress(target, unit=unit)


class PlainProgress(Logger):
    """One line for each epoch."""

    def __init__(self, stream: TextIO | None = None, *, unit: str = "rows") -> None:
        self.stream = sys.stdout if stream is None else stream
        self.unit = unit
        self._plan = Plan(0, 0, 0)

    def start(self, plan: Plan) -> None:
        self._plan = plan

    def epoch(self, report: EpochReport) -> None:
        parts = [f"epoch {report.epoch:{len(str(self._plan.epochs))}}/{self._plan.epochs}"]
        parts += [_shown(name, value) for name, value in report.train.items()]
        parts += [f"validation {_shown(name, value)}" for name, value in report.held_out.items()]
        self.stream.write("  ".join([*parts, f"{report.rate:,.0f} {self.unit}/s"]) + "\n")
        self.stream.flush()


class RichProgress(Logger):
    """A live bar on a terminal: epoch, loss, metrics, rate and remaining time, as far as the width allows."""

    def __init__(self, stream: TextIO | None = None, *, unit: str = "rows") -> None:
        try:
            from rich.console import Console
        except ImportError as error:
            raise ExtraNotInstalledError(
                "the progress bar needs rich, which is not installed; install it with: pip install 'phlox[train]'"
            ) from error
        self.console = Console(file=sys.stdout if stream is None else stream, highlight=False)
        self.unit = unit
        self._bar: Progress | None = None
        self._task: Any = None
        self._plan = Plan(0, 0, 0)
        self._begun = self._looked = 0.0
        self._validation: dict[str, float] = {}

    def start(self, plan: Plan) -> None:
        from rich.progress import Progress

        self._plan = plan
        self._bar = Progress(console=self.console, expand=True, auto_refresh=False)
        self._task = self._bar.add_task("", total=(plan.epochs - plan.first_epoch + 1) * plan.steps)
        self._begun, self._looked = perf_counter(), 0.0
        self._show(plan.first_epoch, 0, {})
        self._bar.start()

    def step(self, report: StepReport) -> None:
        if perf_counter() - self._looked >= _INTERVAL:
            self._show(report.epoch, report.step, {name: mean.value() for name, mean in report.means.items()})
            self._looked = perf_counter()

    def epoch(self, report: EpochReport) -> None:
        self._validation = report.held_out
        # The last line stays on the terminal, so it shows the complete means of the last epoch.
        if report.epoch == self._plan.epochs:
            self._show(report.epoch, self._plan.steps, report.train)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, epoch: int, step: int, values: dict[str, float]) -> None:
        from rich.progress import BarColumn, TextColumn

        if self._bar is None:
            return
        plan = self._plan
        done = (epoch - plan.first_epoch) * plan.steps + step
        total = (plan.epochs - plan.first_epoch + 1) * plan.steps
        seconds = perf_counter() - self._begun
        rate, left = done * plan.batch_size / max(seconds, 1e-9), _clock((total - done) * seconds / max(done, 1))
        head, full = f"epoch {epoch}/{plan.epochs}", [_shown(name, value) for name, value in values.items()]
        last = [f"{rate:,.0f} {self.unit}/s", f"{left} left"] if done else []
        validation = [f"val {_shown(name, self._validation[name])}" for name in [*self._validation][-1:]]
        wide, tail = "  ".join([*full, *validation, *last]), "  ".join([*full, *last])
        width, bar = self.console.width, True
        if len(head) + len(wide) + _BAR + 2 <= width:
            tail = wide
        elif len(head) + len(tail) + _BAR + 2 > width:
            bar = False
            if len(head) + len(tail) + 1 > width:
                head, brief = (
                    f"{epoch}/{plan.epochs}",
                    [_shown(name, value, brief=True) for name, value in values.items()],
                )
                tail = " ".join([*brief, *([f"{rate:,.0f}/s", left] if done else [])])
        left_of, right_of = TextColumn(head, markup=False), TextColumn(tail, markup=False)
        self._bar.columns = (left_of, BarColumn(bar_width=None), right_of) if bar else (left_of, right_of)
        self._bar.expand = bar
        self._bar.update(self._task, completed=done)
        self._bar.refresh()


def _shown(name: str, value: float, *, brief: bool = False) -> str:
    label = name[:3] if brief and name != "loss" else name
    return (
        f"{label} {value:5.1%}" if name == "accuracy" else f"{label} {value:.3f}" if brief else f"{label} {value:.4f}"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
