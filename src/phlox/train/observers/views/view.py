"""Shows a training while it runs: live on a terminal or in a notebook, otherwise as plain lines."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from importlib import import_module
from time import perf_counter
from typing import Any, ClassVar, TextIO, cast

from phlox.errors import ExtraNotInstalledError, RunError
from phlox.host.output import Output, output
from phlox.host.process_memory import resident_bytes
from phlox.host.text import count as counted
from phlox.host.text import size
from phlox.train.events import EpochReport, Plan, Values, flattened
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.callbacks.monitor import is_count
from phlox.train.observers.views.screen import Screen
from phlox.train.observers.views.text import (
    BestValues,
    Snapshot,
    bar_line,
    clock,
    epoch_label,
    figures,
    is_complete,
    live_lines,
    one_line,
    seconds_text,
)

_LONGEST = 10.0
"""After so many seconds without a line the next epoch gets one."""
_WINDOW = 10.0
"""The rate is measured over this many seconds."""
_NOTE = "phlox: the extra 'train' gives a live view of the training"


def progress(stream: TextIO | None = None, *, unit: str = "rows") -> View:
    """A view of a training: live on a terminal and in a notebook, otherwise plain lines.

    Args:
        stream: the stream to write to; standard output if None.
        unit: the name of a row of a batch, such as "images", shown with the rate.

    >>> import io
    >>> progress(io.StringIO(), unit="images")
    PlainProgress(unit='images')
    """
    target = output(stream)
    if stream is None and _in_notebook():
        return NotebookProgress(unit=unit)
    if not target.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return PlainProgress(target, unit=unit)
    try:
        return RichProgress(target, unit=unit)
    except ExtraNotInstalledError:
        return PlainProgress(target, unit=unit, note=_NOTE)


class View(Callback):
    """The base of the views that show the progress of a training.

    Reading the loss waits for the engine, so a view reads it every `interval` seconds at most.
    """

    interval: ClassVar[float] = 0.2
    main_only: ClassVar[bool | None] = True
    lines: int | None = None
    """Epochs get about so many lines, and more if they take long; None means a line for each epoch."""

    def __init__(self, *, unit: str = "rows") -> None:
        self.unit = unit
        self._reset()

    def _reset(self) -> None:
        self._plan = Plan(None, None, None, None)
        self._best = BestValues()
        self._start_time = self._last_time = self._last_line = perf_counter()
        self._first: tuple[float, int] | None = None  # time and number of the first step, which may have compiled
        self._recent: deque[tuple[float, int]] = deque(maxlen=100)
        self._pending: tuple[str, Values] | None = None
        self._error: BaseException | None = None
        self._now = Snapshot()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(unit={self.unit!r})"

    # --- for subclasses

    def begin(self, learner: AnyLearner) -> None:
        """Called before the first step."""

    def show(self, learner: AnyLearner) -> None:
        """Called when the snapshot `self._now` is new."""

    def epoch(self, learner: AnyLearner, label: str, report: EpochReport, best: set[str]) -> None:
        """Called after an epoch, or a validation within one; `best` has the names of the best values so far."""

    def end(self, learner: AnyLearner) -> None:
        """Called at the end, however the training ended."""

    # --- events

    def on_fit_start(self, learner: AnyLearner) -> None:
        self._reset()
        self._plan = learner.plan
        for report in learner.history:
            self._best.add(epoch_label(report.epoch, None), _flat(report))
        self._update_snapshot(learner, "starting", read=False)
        self.begin(learner)

    def on_epoch_start(self, learner: AnyLearner) -> None:
        self._recent.clear()
        self._update_snapshot(learner, "starting" if self._first is None else "", read=False)
        self._now.values = {}
        self.show(learner)

    def on_step_end(self, learner: AnyLearner) -> None:
        now = perf_counter()
        if self._first is None:
            self._first = now, learner.step
        if self._pending is not None:  # no epoch has ended since, so the validation was in the middle of one
            self._validated(learner)
        if now - self._last_time >= self.interval:
            self._update_snapshot(learner)
            self.show(learner)
            self._last_time = perf_counter()

    def on_validation_start(self, learner: AnyLearner) -> None:
        self._update_snapshot(learner, "validating")
        self.show(learner)

    def on_validation_end(self, learner: AnyLearner) -> None:
        self._recent.clear()  # the time of the validation is no time of steps
        steps = self._plan.steps_per_epoch
        done = self._steps_done(learner)
        number = learner.epoch + done / steps if steps else learner.epoch + 1
        label = epoch_label(number, self._plan.epochs)
        self._pending = label if steps else f"{label} step {done:,}", dict(learner.validation)

    def on_epoch_end(self, learner: AnyLearner) -> None:
        self._pending = None
        report = learner.history[-1]
        best = self._best.add(epoch_label(report.epoch, None), _flat(report))
        self._update_snapshot(learner, read=False)
        self._now.epoch, self._now.step, self._now.values = report.epoch, 0, {}
        epochs = self._plan.epochs
        every = 1 if self.lines is None or epochs is None else -(-epochs // self.lines)
        is_due = report.epoch % every == 0 or report.epoch in (1, epochs)
        if is_due or perf_counter() - self._last_line >= _LONGEST:
            self._last_line = perf_counter()
            self.epoch(learner, epoch_label(report.epoch, epochs), report, best)

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        self._error = error

    def on_fit_end(self, learner: AnyLearner) -> None:
        if self._pending is not None and self._error is None:
            self._validated(learner)
        # In the middle of an epoch the last values stay on the screen; after an error they may no longer be readable.
        self._update_snapshot(
            learner, read=self._steps_done(learner) > 0 and isinstance(self._error, (type(None), KeyboardInterrupt))
        )
        self._now.ended = self._ending(learner)
        self._now.left = None
        self.end(learner)

    # --- the snapshot

    def _steps_done(self, learner: AnyLearner) -> int:
        return learner.step - (learner.history[-1].step if learner.history else 0)

    def _validated(self, learner: AnyLearner) -> None:
        assert self._pending is not None
        (label, values), self._pending = self._pending, None
        report = EpochReport(learner.epoch + 1, learner.step, learner.lr, learner.means(), values)
        best = self._best.add(label.partition("/")[0].strip(), flattened("validation", values))
        self.epoch(learner, label, report, best)

    def _update_snapshot(self, learner: AnyLearner, doing: str = "", *, read: bool = True) -> None:
        values = learner.means() if read else self._now.values  # waits for the engine
        now, plan = perf_counter(), self._plan
        self._recent.append((now, learner.rows))
        while len(self._recent) > 2 and now - self._recent[0][0] > _WINDOW:
            self._recent.popleft()
        (since, rows), (until, later) = self._recent[0], self._recent[-1]
        rate = (later - rows) / (until - since) if until - since > 0.05 and later > rows else self._now.rate
        self._now = Snapshot(
            epoch=learner.epoch + 1, epochs=plan.epochs, step=self._steps_done(learner), steps=plan.steps_per_epoch,
            doing=doing, values=values, rate=rate, unit=self.unit, elapsed=now - self._start_time,
            left=self._left(learner, now), lr=learner.lr if learner.step else None, memory=memory_text(learner),
            best=self._best.shown(), events=tuple(learner.events[-5:]),
        )  # fmt: skip

    def _left(self, learner: AnyLearner, now: float) -> float | None:
        """The estimated seconds to the end of the training, including validations."""
        if self._first is None or learner.step <= self._first[1]:
            return None
        plan, history = self._plan, learner.history
        ends: list[int] = []
        steps = plan.steps_per_epoch
        if steps is None and history:
            steps = history[-1].step - (history[-2].step if len(history) > 1 else 0)
        if plan.epochs is not None and steps is not None:
            # Counted from the last epoch: the first epoch of a resumed training may have had another length.
            ended = history[-1].step if history else 0
            ends.append(ended + (plan.epochs - learner.epoch) * steps)
        if plan.steps is not None:
            ends.append(plan.steps)
        since, first = self._first
        return max(min(ends) - learner.step, 0) * (now - since) / (learner.step - first) if ends else None

    def _ending(self, learner: AnyLearner) -> str:
        took = clock(self._now.elapsed)
        if isinstance(self._error, KeyboardInterrupt):
            return f"interrupted after {took}, at step {learner.step:,}"
        if self._error is not None:
            return f"ended by {type(self._error).__name__} after {took}: {self._error}"
        if learner.stopped and not is_complete(learner.plan, learner.epoch, learner.step):
            return f"stopped after {took}: {learner.stopped}"
        return f"finished {counted(learner.epoch, 'epoch')} in {took}"


class PlainProgress(View):
    """One plain line for each epoch; in long epochs also a line every `every_seconds`, and one for each event.

    With `every_steps` there is a further line after so many steps. The parts of a line are separated by two spaces;
    there are no control characters.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        unit: str = "rows",
        every_seconds: float = 30.0,
        every_steps: int | None = None,
        note: str = "",
    ) -> None:
        super().__init__(unit=unit)
        self.stream = cast("Output", output(stream))
        self.every_seconds, self.every_steps, self.note = every_seconds, every_steps, note
        self._written, self._events = perf_counter(), 0
        self._step = 0
        self._is_due = False

    def begin(self, learner: AnyLearner) -> None:
        self._written, self._events, self._step = perf_counter(), len(learner.events), learner.step
        if self.note:
            self._write(learner, self.note)

    def on_step_end(self, learner: AnyLearner) -> None:
        before, self._step = self._step, learner.step
        if self.every_steps is not None and learner.step // self.every_steps > before // self.every_steps:
            self._is_due, self._last_time = True, -math.inf
        self._is_due = self._is_due or perf_counter() - self._written >= self.every_seconds
        if self._first is None or self._pending is not None or self._is_due:
            super().on_step_end(learner)

    def show(self, learner: AnyLearner) -> None:
        self._tell_events(learner)
        now = self._now
        if self._is_due and not now.doing and now.step:
            self._is_due = False
            steps = f"step {now.step:,}" + ("" if now.steps is None else f"/{now.steps:,}")
            left = [] if now.left is None else [f"{clock(now.left)} left"]
            label = f"epoch {epoch_label(now.epoch, now.epochs)}"
            self._write(learner, label, steps, *_named(now.values), *_rate(now.rate, self.unit), *left)

    def epoch(self, learner: AnyLearner, label: str, report: EpochReport, best: set[str]) -> None:
        self._tell_events(learner)
        self._write(learner, *plain_parts(label, report, self.unit))

    def end(self, learner: AnyLearner) -> None:
        self._tell_events(learner)
        if self._now.ended is not None and not self._now.ended.startswith("finished"):
            self._write(learner, self._now.ended)

    def _tell_events(self, learner: AnyLearner) -> None:
        new, self._events = learner.events[self._events :], len(learner.events)
        for step, text in new:
            self._write(learner, f"step {step:,}: {text}")

    def _write(self, learner: AnyLearner, *parts: str) -> None:
        has_reader = self.stream.stream is not None
        self.stream.write(plain_line(*parts) + "\n")
        self.stream.flush()
        self._written = perf_counter()
        if has_reader and self.stream.stream is None:
            learner.warn(f"{type(self).__name__}: the stream cannot be written to; there are no more lines")


class Print(PlainProgress):
    """Prints a plain line at the end of each epoch, for each event, and the reason if the training was stopped.

    For an array the range is printed, for a matrix nothing.

    Args:
        every_steps: the number of steps after which to print a further line, with the means of the epoch so far.
        stream: the stream to write to; standard output if None.

    If the stream can no longer be written to, the learner is warned once, and the training goes on without lines.

    >>> callback = Print(every_steps=100)
    """

    def __init__(self, every_steps: int | None = None, stream: TextIO | None = None) -> None:
        if every_steps is not None and not is_count(every_steps):
            raise RunError(f"Print: every_steps must be a whole number of at least one, or None, got {every_steps!r}")
        super().__init__(stream, every_seconds=math.inf, every_steps=every_steps)


def plain_parts(label: str, report: EpochReport, unit: str) -> list[str]:
    """The parts of the plain line of an epoch."""
    took = [seconds_text(report.seconds), *_rate(report.rate, unit)] if report.seconds > 0.0 else []
    return [f"epoch {label}", *_named(report.train), *_named(report.validation, "validation "), *took]


def plain_line(*parts: str) -> str:
    """A plain line. Two spaces separate its parts, so no part may have them, except for the padded `epoch  1/12`."""
    return "  ".join(part if part.startswith("epoch ") else one_line(part) for part in parts)


def _rate(rate: float | None, unit: str) -> list[str]:
    return [f"{rate:,.0f} {unit}/s"] if rate and rate == rate else []


class RichProgress(View):
    """A live view in a terminal: a line for each epoch, and below them the current epoch, rates, times and events.

    It needs rich: `ExtraNotInstalledError` if that is missing.
    """

    def __init__(self, stream: TextIO | None = None, *, unit: str = "rows") -> None:
        super().__init__(unit=unit)
        self.screen = Screen(output(stream))

    def begin(self, learner: AnyLearner) -> None:
        self.screen.open(self._now)

    def show(self, learner: AnyLearner) -> None:
        self.screen.show(self._now)

    def epoch(self, learner: AnyLearner, label: str, report: EpochReport, best: set[str]) -> None:
        self.screen.epoch(label, report.train, report.validation, report.seconds or None, best)
        self.screen.show(self._now)

    def end(self, learner: AnyLearner) -> None:
        self.screen.show(self._now)
        self.screen.close()


class NotebookProgress(PlainProgress):
    """A view in a notebook: one line that is updated in place, and a plain line for each epoch."""

    interval: ClassVar[float] = 1.0

    def __init__(self, *, unit: str = "rows") -> None:
        super().__init__(unit=unit, every_seconds=math.inf)
        self._handle: Any = None

    def begin(self, learner: AnyLearner) -> None:
        super().begin(learner)
        self._handle = _display(self._line())

    def on_step_end(self, learner: AnyLearner) -> None:
        View.on_step_end(self, learner)

    def show(self, learner: AnyLearner) -> None:
        super().show(learner)
        self._update()

    def end(self, learner: AnyLearner) -> None:
        self._update()

    def _update(self) -> None:
        if self._handle is not None:
            self._handle.update(_as_text(self._line()), raw=True)

    def _line(self) -> str:
        if self._now.ended is not None:
            return one_line(self._now.ended)
        bar = bar_line(self._now, 100)
        facts = live_lines(self._now, 60)[1]
        return "".join(text for text, _ in [*bar, ("  ", ""), *facts])


# --- the process and its surroundings


def memory_text(learner: AnyLearner) -> str:
    """The memory of the process, and that of the device if its engine reports it."""
    parts: list[str] = []
    if resident := resident_bytes():
        parts.append(f"memory {size(resident)}")
    device = learner.device
    if count := device.backend.memory_used(device):
        parts.append(f"{'device ' if parts else 'device memory '}{size(count)}")
    return ", ".join(parts)


def _flat(report: EpochReport) -> dict[str, float]:
    return flattened("train", report.train) | flattened("validation", report.validation)


def _named(values: Values, prefix: str = "") -> list[str]:
    return [f"{prefix}{name} {text}" for name, text in figures(values).items()]


def _in_notebook() -> bool:
    """Is this process the kernel of a notebook? This does not import IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def _display(text: str) -> Any:
    display = import_module("IPython.display").display
    return display(_as_text(text), raw=True, display_id=True)


def _as_text(text: str) -> dict[str, str]:
    return {"text/plain": text}
