"""The curves of a training's values over its epochs, for its report and for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from phlox.host.page import Raw
from phlox.host.svg import Curve, decimated, line_plot
from phlox.train.events import EpochReport
from phlox.train.observers.views.epochs import CURVES, best_point, is_share
from phlox.train.observers.views.text import better

_FAR_APART = 30.0
"""Losses with a larger ratio are drawn on a logarithmic scale."""


class Plot(NamedTuple):
    """Curves over one x."""

    name: str
    x: str
    curves: Sequence[Curve]
    has_best: bool = False
    """Is the best point of the last curve marked?"""

    @property
    def is_share(self) -> bool:
        """Are the values shown in percent?"""
        return is_share(self.name, [curve.y for curve in self.curves])

    @property
    def log(self) -> bool:
        """Is the scale logarithmic? It is for losses and rates that are positive and far apart."""
        finite = [value for curve in self.curves for value in curve.y if math.isfinite(value)]
        apart = bool(finite) and min(finite) > 0.0 and max(finite) / min(finite) > _FAR_APART
        return apart and better(self.name) == "min"

    def figure(self) -> Raw:
        """The plot for a notebook."""
        return line_plot(self.name, self.curves, x=self.x, log_y=self.log, percent=self.is_share)

    def embedded(self) -> dict[str, Any]:
        """The data of the plot for the script of a report."""
        series: list[dict[str, Any]] = []
        for number, curve in enumerate(self.curves):
            xs, ys = decimated(curve.x, curve.y)
            y = [value if math.isfinite(value) else None for value in ys]
            is_last = number == len(self.curves) - 1
            best = best_point(self.name, curve.x, curve.y) if self.has_best and is_last and len(curve.y) > 1 else None
            series.append({"label": curve.label, "x": xs, "y": y, "best": None if best is None else list(best)})
        common = {"percent": self.is_share, "log": self.log, "whole": True}
        return {"name": self.name, "x": self.x, "series": series, **common}


def plots_of(history: Sequence[EpochReport], classes: Sequence[str] = ()) -> Iterator[Plot]:
    """A plot of each value of training and validation. For a metric by class, of the validation if that has it, a curve
    for each class or, for many classes, of the least, the median and the greatest. Matrices are left out."""
    flat = [report.flat() for report in history]
    epochs = [report.epoch for report in history]
    named: dict[str, dict[str, list[str]]] = {}
    for key in dict.fromkeys(key for values in flat for key in values):
        side, _, name = key.partition("/")
        stem, _, index = name.rpartition("/")
        if side in ("train", "validation") and not stem.rpartition("/")[2].isdecimal():
            named.setdefault(stem if index.isdecimal() else name, {}).setdefault(side, []).append(key)
    for name, sides in named.items():
        columns = {
            side: np.array([[values.get(key, math.nan) for values in flat] for key in keys], np.float64)
            for side, keys in sorted(sides.items())
        }
        by_class = next((keys for keys in sides.values() if keys[0].rpartition("/")[2].isdecimal()), None)
        if by_class is None:
            yield Plot(name, "epoch", [Curve(side, epochs, y[0].tolist()) for side, y in columns.items()], True)
            continue
        rows = columns.get("validation", columns.get("train", np.empty((0, 0))))
        if len(rows) > CURVES:
            ordered = np.sort(rows, axis=0)  # NaN last
            count = np.maximum(np.isfinite(ordered).sum(axis=0), 1)
            chosen = {"least": 0 * count, "median": (count - 1) // 2, "greatest": count - 1}
            curves = {label: ordered[index, np.arange(len(index))] for label, index in chosen.items()}
        else:
            curves = {classes[i] if i < len(classes) else str(i): row for i, row in enumerate(rows)}
        yield Plot(name, "epoch", [Curve(label, epochs, y.tolist()) for label, y in curves.items()])
