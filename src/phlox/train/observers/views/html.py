"""Trainings in notebooks: learners, histories with their curves, and results of trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from phlox.errors import RunError
from phlox.host.page import Cell, Line, Page, Part, Row, facts
from phlox.host.svg import Curve, line_plot
from phlox.host.text import count, duration
from phlox.optim.html import name_of
from phlox.train.events import EpochReport, flattened
from phlox.train.observers.views.epochs import best_point, epochs_table, is_share, is_shown
from phlox.train.observers.views.text import amount, better, lr_text

if TYPE_CHECKING:
    from phlox.train.learner import Learner
    from phlox.train.trials.lr_find import LrCurve

_PLOTS = 8
"""The maximum number of plots."""
_FAR_APART = 30.0
"""Losses with a larger ratio are drawn on a logarithmic scale."""


def page_of_history(history: Sequence[EpochReport]) -> Page:
    """The epochs of a training: curves and a table."""
    if not history:
        return Page("History", ["no epoch has ended"])
    seconds = sum(report.seconds for report in history)
    said = [count(len(history), "epoch"), count(history[-1].step, "step"), duration(seconds)]
    table = Page("epochs, the newest first", parts=epochs_table(history), is_open=True)
    return Page("History", said, [*_plots(history), table])


def _plots(history: Sequence[EpochReport]) -> list[Part]:
    """A plot for each value that is a number, of training and validation."""
    flat = [report.flat() for report in history]
    epochs = [report.epoch for report in history]
    every = dict.fromkeys(key for values in flat for key in values if key.startswith(("train/", "validation/")))
    names = dict.fromkeys(key.partition("/")[2] for key in every if is_shown(key))
    plots: list[Part] = []
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
    return [Row(plots), f"and {more} more values in the table" if more > 0 else ""]


def page_of_epoch(report: EpochReport) -> Page:
    """One epoch."""
    badges = [] if report.complete else [("not complete", "")]
    said = [f"step {report.step:,}", lr_text(report.lr), duration(report.seconds)]
    train, validation = flattened("", report.train), flattened("", report.validation)
    rows = [(name.removeprefix("/"), train.get(name), validation.get(name)) for name in {**train, **validation}]
    pairs = [(name, _both(name, one, other)) for name, one, other in rows[:50]]
    return Page(f"Epoch {report.epoch:,}", said, [facts(pairs)], badges)


def _both(name: str, train: float | None, validation: float | None) -> str:
    parts = (("train", train), ("validation", validation))
    return ", ".join(f"{part} {amount(name, value)}" for part, value in parts if value is not None)


def page_of_learner(learner: Learner[Any]) -> Page:
    """A learner: where it is, and its history."""
    badges = [(f"stopped: {learner.stopped}", "")] if learner.stopped else []
    said = [f"epoch {learner.epoch:,}", f"step {learner.step:,}", str(learner.device)]
    models = cast("Mapping[str, Any]", learner.state.models)
    pairs = [(name if len(models) > 1 else "model", type(model).__name__) for name, model in models.items()]
    pairs += [("optimizer", name_of(one)) for one in cast("Mapping[str, Any]", learner.state.optimizers).values()]
    if learner.folder is not None:
        pairs.append(("folder", str(learner.folder)))
    parts: list[Part] = [facts([*pairs, *_best(learner.history)])]
    if learner.history:
        parts.append(replace(page_of_history(learner.history), is_open=True))
    return Page("Learner", said, parts, badges)


def _best(history: Sequence[EpochReport]) -> list[tuple[str, str | Cell]]:
    flat = [report.flat() for report in history]
    found: list[tuple[str, str | Cell]] = []
    for name in dict.fromkeys(key for values in flat for key in values if key.startswith("validation/")):
        point = best_point(name, [values["epoch"] for values in flat], [values.get(name) for values in flat])
        if point is not None and is_shown(name) and len(found) < 6:
            text = f"{amount(name, point[1])} in epoch {point[0]:g}"
            found.append((f"best {name}", Cell(text, kind="good")))
    return found


def page_of_lr_curve(curve: LrCurve) -> Page:
    """The losses at learning rates from low to high."""
    try:
        found = Line(f"the loss falls fastest at {curve.suggestion:.1e}", "good")
    except RunError as error:
        found = Line(str(error).removeprefix("lr_find: "), "bad")
    plot = line_plot("loss", [Curve("smoothed", curve.rates, curve.losses)], x="learning rate", log_x=True)
    return Page("LrCurve", [count(len(curve.rates), "step")], [found, plot])
