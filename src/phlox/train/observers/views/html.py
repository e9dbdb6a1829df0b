"""Trainings in notebooks: learners, histories with their curves, and results of trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from phlox.errors import RunError
from phlox.host.html import Cell, counted, facts, fold, header, paragraph, representation
from phlox.host.svg import Curve, line_plot
from phlox.host.units import duration
from phlox.host.units import size as bytes_text
from phlox.optim.html import name_of
from phlox.train.events import EpochReport, flattened
from phlox.train.observers.views.epochs import best_point, epochs_table, is_share, is_shown
from phlox.train.observers.views.text import amount, better, lr_text

if TYPE_CHECKING:
    from phlox.train.learner import Learner
    from phlox.train.trials.dry_run import DryRun
    from phlox.train.trials.lr_find import LrCurve

_PLOTS = 8
"""The maximum number of plots."""
_FAR_APART = 30.0
"""Losses with a larger ratio are drawn on a logarithmic scale."""


def html_of_history(history: Sequence[EpochReport]) -> str:
    """The representation of the epochs of a training."""
    return representation(history, _history)


def html_of_epoch(report: EpochReport) -> str:
    """The representation of one epoch."""
    return representation(report, _epoch)


def html_of_learner(learner: Learner[Any]) -> str:
    """The representation of a learner: where it is, and its history."""
    return representation(learner, _learner)


def html_of_lr_curve(curve: LrCurve) -> str:
    """The representation of the losses at learning rates from low to high."""
    return representation(curve, _lr_curve)


def html_of_dry_run(found: DryRun) -> str:
    """The representation of what a dry run has found."""
    return representation(found, _dry_run)


def _history(history: Sequence[EpochReport]) -> str:
    if not history:
        return f"<div>{header('History', 'no epoch has ended')}</div>"
    last = history[-1]
    seconds = sum(report.seconds for report in history)
    head = header("History", counted(len(history), "epoch"), counted(last.step, "step"), duration(seconds))
    return f'<div>{head}</div><div class="row">{_plots(history)}</div>' + fold(
        "epochs, the newest first", epochs_table(history), is_open=True
    )


def _plots(history: Sequence[EpochReport]) -> str:
    """A plot for each value that is a number, of training and validation."""
    flat = [report.flat() for report in history]
    epochs = [report.epoch for report in history]
    every = dict.fromkeys(key for values in flat for key in values if key.startswith(("train/", "validation/")))
    names = dict.fromkeys(key.partition("/")[2] for key in every if is_shown(key))
    plots: list[str] = []
    for name in list(names)[:_PLOTS]:
        curves = [
            Curve(part, epochs, [values.get(f"{part}/{name}", math.nan) for values in flat])
            for part in ("train", "validation")
            if f"{part}/{name}" in every
        ]
        known = [value for curve in curves for value in curve.y if math.isfinite(value)]
        log = bool(known) and min(known) > 0.0 and max(known) / min(known) > _FAR_APART and better(name) == "min"
        percent = is_share(name, [known])
        plots.append(line_plot(name, curves, x="epoch", log_y=log, percent=percent))
    more = len(names) - _PLOTS
    return "".join(plots) + (paragraph(f"and {more} more values in the table") if more > 0 else "")


def _epoch(report: EpochReport) -> str:
    marks = [] if report.complete else [("not complete", "")]
    said = (f"step {report.step:,}", lr_text(report.lr), duration(report.seconds))
    train, validation = flattened("", report.train), flattened("", report.validation)
    rows = [(name.removeprefix("/"), train.get(name), validation.get(name)) for name in {**train, **validation}]
    pairs = [(name, _both(name, one, other)) for name, one, other in rows[:50]]
    return f"<div>{header(f'Epoch {report.epoch:,}', *said, badges=marks)}</div>{facts(pairs)}"


def _both(name: str, train: float | None, validation: float | None) -> str:
    parts = (("train", train), ("validation", validation))
    return ", ".join(f"{part} {amount(name, value)}" for part, value in parts if value is not None)


def _learner(learner: Learner[Any]) -> str:
    marks = [(f"stopped: {learner.stopped}", "")] if learner.stopped else []
    said = (f"epoch {learner.epoch:,}", f"step {learner.step:,}", str(learner.device))
    head = header("Learner", *said, badges=marks)
    models = cast("Mapping[str, Any]", learner.state.models)
    parts = [(name if len(models) > 1 else "model", type(model).__name__) for name, model in models.items()]
    parts += [("optimizer", name_of(one)) for one in cast("Mapping[str, Any]", learner.state.optimizers).values()]
    if learner.folder is not None:
        parts.append(("folder", str(learner.folder)))
    best = _best(learner.history)
    return f"<div>{head}</div>{facts([*parts, *best])}{_history(learner.history) if learner.history else ''}"


def _best(history: Sequence[EpochReport]) -> list[tuple[str, str | Cell]]:
    flat = [report.flat() for report in history]
    found: list[tuple[str, str | Cell]] = []
    for name in dict.fromkeys(key for values in flat for key in values if key.startswith("validation/")):
        point = best_point(name, [values["epoch"] for values in flat], [values.get(name) for values in flat])
        if point is not None and is_shown(name) and len(found) < 6:
            text = f"{amount(name, point[1])} in epoch {point[0]:g}"
            found.append((f"best {name}", Cell(text, kind="good")))
    return found


def _lr_curve(curve: LrCurve) -> str:
    try:
        found, kind = f"the loss falls fastest at {curve.suggestion:.1e}", "good"
    except RunError as error:
        found, kind = str(error).removeprefix("lr_find: "), "bad"
    plot = line_plot("loss", [Curve("smoothed", curve.rates, curve.losses)], x="learning rate", log_x=True)
    return f"<div>{header('LrCurve', counted(len(curve.rates), 'step'))}</div>{paragraph(found, kind)}{plot}"


def _dry_run(found: DryRun) -> str:
    pairs = [
        ("a step", duration(found.step)),
        ("the first step", duration(found.first_step)),
        ("parameters", bytes_text(found.model)),
        ("states of the optimizer", bytes_text(found.optimizer)),
        ("a checkpoint", bytes_text(found.checkpoint)),
        ("memory of the process, at most", "" if found.process is None else bytes_text(found.process)),
        ("memory of the device, at most", "" if found.device is None else bytes_text(found.device)),
        ("left out, since they write", ", ".join(found.left_out)),
    ]
    return f"<div>{header('DryRun', badges=[('all went well', 'good')])}</div>{facts(pairs)}"
