"""The table of a training's epochs, in its report and in notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from phlox.host.page import Cell, Part, Table
from phlox.train.events import EpochReport
from phlox.train.observers.views.text import better, is_better

_ROWS = 400
"""The table has about this many rows."""
CURVES = 10
"""For a metric of more classes, only the least, the median and the greatest value are drawn."""


def epochs_table(history: Sequence[EpochReport]) -> list[Part]:
    """The table of epochs, the newest first; of very many epochs, only the best, the last and every n-th."""
    if not history:
        return []
    flat = {report.epoch: report.flat() for report in history}
    columns = dict.fromkeys(name for values in flat.values() for name in values if is_shown(name))
    names = sorted(columns, key=_rank)
    best: dict[str, int] = {}
    for name in names:
        if name.startswith(("train/", "validation/")):
            point = best_point(name, list(flat), [values.get(name) for values in flat.values()])
            best |= {} if point is None else {name: int(point[0])}
    step = -(-len(flat) // _ROWS)
    kept = [e for i, e in enumerate(reversed(flat)) if i % step == 0 or i < 20 or e in best.values()]
    rows = [
        [
            Cell(_number(flat[e][name]) if name in flat[e] else "–", kind="best" * (best.get(name) == e))
            for name in names
        ]
        for e in kept
    ]
    return [f"Every {step} epochs, the last 20, and the best ones." if step > 1 else "", Table(names, rows)]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def is_shown(name: str) -> bool:
    """Is a value a column of the table? Entries of a matrix, and of a class after the first few, are not."""
    parts = name.split("/")
    return not (parts[-1].isdecimal() and (parts[-2:-1] == [] or parts[-2].isdecimal() or int(parts[-1]) >= CURVES))


def _rank(name: str) -> tuple[bool, int]:
    """The sort key of a column: values of single classes come last."""
    order = ("epoch", "step", "validation", "train", "lr", "seconds")
    part, _, value_name = name.partition("/")
    return value_name.rpartition("/")[2].isdecimal(), order.index(part) if part in order else len(order)


def is_share(name: str, values: Sequence[Sequence[Any]]) -> bool:
    """Are the values shown in percent?"""
    some = [value for row in values for value in row if isinstance(value, (int, float))]
    return name.endswith("accuracy") and max(some, default=0.0) <= 1.0


def best_point(name: str, x: Sequence[float], y: Sequence[float | None]) -> tuple[float, float] | None:
    """The x and the y of the best value; None if the name does not say which is better."""
    if better(name) is None:
        return None
    best: tuple[float, float] | None = None
    for position, value in zip(x, y, strict=True):
        if value is not None and math.isfinite(value) and is_better(name, value, None if best is None else best[1]):
            best = position, value
    return best
