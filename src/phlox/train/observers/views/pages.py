"""Trainings in notebooks: learners, histories with their curves, and results of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from phlox.errors import RunError
from phlox.host.page import Cell, Line, Page, Part, Row, facts
from phlox.host.svg import Curve, line_plot
from phlox.host.text import count, duration
from phlox.optim.pages import name_of
from phlox.train.events import EpochReport, flattened
from phlox.train.observers.views.epochs import best_point, epochs_table, is_shown
from phlox.train.observers.views.plots import plots_of
from phlox.train.observers.views.text import amount, lr_text

if TYPE_CHECKING:
    from phlox.train.learner import Learner
    from phlox.train.trials.lr_find import LrCurve

_PLOTS = 8
"""The maximum number of plots."""


def page_of_history(history: Sequence[EpochReport]) -> Page:
    """The epochs of a training: curves and a table."""
    if not history:
        return Page("History", ["no epoch has ended"])
    seconds = sum(report.seconds for report in history)
    subtitle = [count(len(history), "epoch"), count(history[-1].step, "step"), duration(seconds)]
    table = Page("epochs, the newest first", parts=epochs_table(history), is_open=True)
    plots = list(plots_of(history))
    hint = f"and {len(plots) - _PLOTS} more values in the table" if len(plots) > _PLOTS else ""
    return Page("History", subtitle, [Row([plot.figure() for plot in plots[:_PLOTS]]), hint, table])


def page_of_epoch(report: EpochReport) -> Page:
    """One epoch."""
    badges = [] if report.complete else [("not complete", "")]
    subtitle = [f"step {report.step:,}", lr_text(report.lr), duration(report.seconds)]
    train, validation = flattened("", report.train), flattened("", report.validation)
    rows = [(name.removeprefix("/"), train.get(name), validation.get(name)) for name in {**train, **validation}]
    pairs = [(name, _both(name, trained, validated)) for name, trained, validated in rows[:50]]
    return Page(f"Epoch {report.epoch:,}", subtitle, [facts(pairs)], badges)


def _both(name: str, train: float | None, validation: float | None) -> str:
    parts = (("train", train), ("validation", validation))
    return ", ".join(f"{part} {amount(name, value)}" for part, value in parts if value is not None)


def page_of_learner(learner: Learner[Any]) -> Page:
    """A learner: its progress and its history."""
    badges = [(f"stopped: {learner.stopped}", "")] if learner.stopped else []
    subtitle = [f"epoch {learner.epoch:,}", f"step {learner.step:,}", str(learner.device)]
    models = cast("Mapping[str, Any]", learner.state.models)
    pairs = [(name if len(models) > 1 else "model", type(model).__name__) for name, model in models.items()]
    pairs += [("optimizer", name_of(each)) for each in cast("Mapping[str, Any]", learner.state.optimizers).values()]
    if learner.folder is not None:
        pairs.append(("folder", str(learner.folder)))
    parts: list[Part] = [facts([*pairs, *_best(learner.history)])]
    if learner.history:
        parts.append(replace(page_of_history(learner.history), is_open=True))
    return Page("Learner", subtitle, parts, badges)


def _best(history: Sequence[EpochReport]) -> list[tuple[str, str | Cell]]:
    flat = [report.flat() for report in history]
    pairs: list[tuple[str, str | Cell]] = []
    for name in dict.fromkeys(key for values in flat for key in values if key.startswith("validation/")):
        point = best_point(name, [values["epoch"] for values in flat], [values.get(name) for values in flat])
        if point is not None and is_shown(name) and len(pairs) < 6:
            text = f"{amount(name, point[1])} in epoch {point[0]:g}"
            pairs.append((f"best {name}", Cell(text, kind="good")))
    return pairs


def page_of_lr_curve(curve: LrCurve) -> Page:
    """The losses at learning rates from low to high."""
    try:
        summary = Line(f"the loss falls fastest at {curve.suggestion:.1e}", "good")
    except RunError as error:
        summary = Line(str(error).removeprefix("lr_find: "), "bad")
    plot = line_plot("loss", [Curve("smoothed", curve.rates, curve.losses)], x="learning rate", log_x=True)
    return Page("LrCurve", [count(len(curve.rates), "step")], [summary, plot])
