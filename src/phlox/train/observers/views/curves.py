"""Plots of learning curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

from phlox.errors import ExtraNotInstalledError, RunError
from phlox.train.events import EpochReport

_COLOURS = {"train": "#8a94a6", "validation": "#d9480f"}
_INK = "#2b2f36"


def draw_curves(history: Sequence[EpochReport], *, title: str = "", format: Literal["png", "svg"] = "png") -> bytes:
    """Plot the learning curves of a training: one panel for the loss and one for each scalar metric.

    Returns the bytes of a PNG or SVG file; equal histories give equal bytes.

    Raises:
        ExtraNotInstalledError: matplotlib is not installed.
        RunError: the history is empty.
    """
    if not history:
        raise RunError("there are no epochs to draw curves of; train for one or more")
    names = [name for name, value in history[0].train.items() if isinstance(value, (int, float))]
    if not names:
        raise RunError("there is nothing to draw curves of: neither the loss nor any metric is a number")
    figure, panels = panels_of(names, 4.6 * len(names), "epoch", title)
    for axes, name in zip(panels, names, strict=True):
        _draw(axes, history, name)
    return file_of(figure, format)


def panels_of(titles: Sequence[str], width: float, x: str, title: str) -> tuple[Any, Sequence[Any]]:
    """A figure, and its axes beside each other; it is drawn without a window.

    Raises ExtraNotInstalledError if Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ExtraNotInstalledError(
            "plots need matplotlib, which is not installed; install Phlox with the extra 'train'"
        ) from error
    figure: Any = Figure(figsize=(width, 3.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(titles), squeeze=False)[0]
    for axes, name in zip(panels, titles, strict=True):
        axes.set_title(name, loc="left", fontsize=10, color=_INK)
        axes.set_xlabel(x, color=_INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#e6e8ec", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#b9bec7")
        axes.tick_params(which="both", colors="#555b66", labelsize=8)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=_INK)
    return figure, panels


def file_of(figure: Any, format: str) -> bytes:
    """The bytes of a figure as a file; equal figures give equal bytes."""
    from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType]

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "phlox"}):  # the ids in an SVG are random without a salt
        figure.savefig(buffer, format=format, metadata={"Software": None} if format == "png" else {"Date": None})
    return buffer.getvalue()


def _draw(axes: Any, history: Sequence[EpochReport], name: str) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator, PercentFormatter

    epochs = [report.epoch for report in history]
    curves = {"train": [report.train[name] for report in history]}
    if all(name in report.validation for report in history):
        curves["validation"] = [report.validation[name] for report in history]
    for label, values in curves.items():
        marker = "o" if len(values) == 1 else None
        last = f"{values[-1]:.1%}" if name == "accuracy" else f"{values[-1]:.3g}"
        axes.plot(epochs, values, color=_COLOURS[label], linewidth=1.6, marker=marker, label=f"{label}, last {last}")
    # Leave the first epochs out of the limits: their values are far from the later ones, which matter more.
    late = [value for values in curves.values() for value in values[len(values) // 8 :]]
    if name == "accuracy":
        low, high = min(late), max(max(values) for values in curves.values())
        axes.set_ylim(max(0.0, low - 0.1 * (1.0 - low)), high + 0.1 * (high - low) + 0.001)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    elif min(min(values) for values in curves.values()) > 0.0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=8)
