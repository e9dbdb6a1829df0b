"""Plots of learning-rate schedules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from phlox.errors import OptimizerError, RunError
from phlox.optim import LrSchedule
from phlox.optim.schedule.base import curves_of
from phlox.record.io.files import atomic_write
from phlox.train.observers.views.curves import file_of, panels_of

_COLOURS = ["#d9480f", "#1864ab", "#2b8a3e", "#862e9c", "#e8a008", "#8a94a6"]


def draw_schedule(
    schedule: LrSchedule[Any] | Mapping[str, LrSchedule[Any]],
    steps: int,
    *,
    path: str | os.PathLike[str] | None = None,
    title: str = "",
    log: bool = False,
    format: Literal["png", "svg"] = "png",
) -> bytes:
    """Plot the learning rates of the first `steps` steps, as a PNG or SVG. The schedule is not advanced.

    `LrSchedule.sketch` needs no matplotlib.

    Args:
        schedule: one schedule, or several by the names for the legend. A `GroupedLr` has a line for each group.
        steps: the number of steps, from the first one.
        path: a file to write as well, completely or not at all.
        title: the title of the plot.
        log: whether the axis of the rates is logarithmic; rates of zero are then not drawn.
        format: of the bytes that are returned, "png" or "svg". The name of a file says its own.

    Raises:
        ExtraNotInstalledError: matplotlib is not installed.
        OptimizerError: there is nothing to plot, or a rate is negative or not finite.
        RunError: the file cannot be written, or its name ends in neither ".png" nor ".svg".

    >>> from phlox import optim
    >>> cosine = optim.CosineAnnealingLr(0.1, num_iters=100)
    >>> draw_schedule({"plain": cosine, "warmed up": optim.WarmUpLr(cosine, num_iters=20)}, 120)[1:4]
    b'PNG'
    """
    if path is not None and Path(path).suffix.lower() not in (".png", ".svg"):
        raise RunError(f"{path}: the plot is a PNG or an SVG; give its file a name that ends in .png or .svg")
    lines = _lines(schedule, steps)
    figure, panels = panels_of(["learning rate"], 6.4, "step", title)
    _draw(panels[0], lines, log)
    if path is not None:
        _write(Path(path), file_of(figure, Path(path).suffix.lower()[1:]))
    return file_of(figure, format)


def _write(path: Path, plot: bytes) -> None:
    try:
        with atomic_write(path) as file:
            file.write(plot)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}); give another path") from error


def _lines(
    schedule: LrSchedule[Any] | Mapping[str, LrSchedule[Any]], steps: int
) -> dict[str, tuple[list[int], list[float]]]:
    """The steps and the rates of every line, by its label."""
    named = {"": schedule} if isinstance(schedule, LrSchedule) else schedule
    if not named:
        raise OptimizerError("there are no schedules to plot; give one, or several by name")
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for name, each in named.items():
        points, curves = curves_of(each, steps)
        for group, rates in curves.items():
            lines[", ".join(part for part in (name, group) if part)] = points, rates
    return lines


def _draw(axes: Any, lines: Mapping[str, tuple[list[int], list[float]]], log: bool) -> None:
    if log and not any(rate > 0.0 for _, rates in lines.values() for rate in rates):
        raise OptimizerError("all rates are zero, which a logarithmic axis cannot show; omit log=True")
    for number, (label, (points, rates)) in enumerate(lines.items()):
        # A rate is constant within its step: draw a jump as a jump, not as a slope.
        axes.step(
            points, rates, where="post", color=_COLOURS[number % len(_COLOURS)], linewidth=1.6,
            marker="o" if len(points) == 1 else None, label=label or None,
        )  # fmt: skip
    if log:
        axes.set_yscale("log", nonpositive="mask")
    else:
        axes.set_ylim(bottom=0.0)
    if list(lines) != [""]:
        axes.legend(frameon=False, fontsize=8)
