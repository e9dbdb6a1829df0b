# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The plot of the headlines: a dot for each workload, its quartiles as a bar, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.harness import Ratio

FASTER, SLOWER, ASIDE, INK, FAINT = "#0b6e99", "#c4501b", "#8a8a8a", "#222222", "#d0d0d0"
TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def draw(rows: Sequence[Ratio], file: Path, beside: Sequence[Ratio] = ()) -> None:
    """Draw the plot in the format of the file's suffix; the same rows give the same bytes.

    Rows of `not_counted` are grey, below those of their workload.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [one for row in rows for one in (row, *(other for other in beside if other.workload == row.workload))]
    style: dict[Any, Any] = {
        "svg.hashsalt": "phlox", "font.family": "DejaVu Sans", "font.size": 10, "text.color": INK,
        "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": FAINT,
    }  # fmt: skip
    with plt.rc_context(style):
        height = 1.0 + 0.3 * len(rows)
        figure, axes = plt.subplots(figsize=(15, height), facecolor="white")
        figure.subplots_adjust(left=0.36, right=0.7, top=1 - 0.1 / height, bottom=0.7 / height)
        axes.set_facecolor("white")
        axes.set_xscale("log")
        least, most = min([row.low for row in rows] + [0.5]) / 1.15, max([row.high for row in rows] + [1.2]) * 1.15
        axes.set_xlim(least, most)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.axvline(1.0, color=INK, linewidth=1.2, zorder=1)
        axes.axvline(0.8, color=INK, linewidth=0.8, linestyle=(0, (2, 3)), zorder=1)
        for place, row in enumerate(rows):
            counted = row not in beside
            color = ASIDE if not counted else FASTER if row.ratio <= 1.0 else SLOWER
            axes.plot([row.low, row.high], [place, place], color=color, linewidth=5, alpha=0.35, solid_capstyle="round")
            axes.plot([row.ratio], [place], "o", color=color, markersize=7, zorder=3)
            names = f"{row.subject} / {row.peer}" + ("" if counted else " (not counted)")
            for text, at in ((row.figure, 1.01), (fill(names, 56), 1.095)):
                axes.annotate(
                    text, (at, place), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=color,
                    annotation_clip=False,
                )  # fmt: skip
        axes.set_yticks(range(len(rows)), [fill(row.workload, 64) for row in rows])
        for label in axes.get_yticklabels():
            if "\n" in label.get_text():
                label.set(fontsize=8, linespacing=1.0)  # otherwise two lines would touch the next row
        ticks = [tick for tick in TICKS if least <= tick <= most]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(axis="x", color=FAINT, linewidth=0.6, zorder=0)
        axes.tick_params(length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_xlabel("time of Phlox over that of the best peer; left of 1 Phlox is faster, dotted: 0.8")
        metadata = {"Date": None, "Creator": None} if file.suffix == ".svg" else None
        figure.savefig(file, facecolor="white", metadata=metadata)
        plt.close(figure)
