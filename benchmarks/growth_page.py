# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Matplotlib is optional.
"""The page of `benchmarks.growth`: a plot of all curves, and a table of their exponents where they end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arena.plot import LIGHT
from benchmarks.growth import AXES, PEER, PHLOX, Cell

MORE = 0.3
"""A curve bends if its exponent is larger than the peer's by this, by the clock and by the processor."""
_LEAST = 1e-7
"""The least figure: a clock may not have moved."""
COLORS: dict[str, str] = dict(zip(PHLOX, (LIGHT["faster"], LIGHT["slower"], "#8a4fb0", "#2b8a57"), strict=True))
PEER_COLORS = {PEER[name]: COLORS[name] for name in PHLOX}
ORDER = (
    "training step", "first step", "tracing", "compiling", "memory of a step", "saving", "loading", "checkpoint",
    "epoch of fit",
)  # fmt: skip
"""The quantities that come first, so that they are in the same column for most axes."""
COLUMNS = len(ORDER)
LEAST_DECADES = 2.0
"""The least height of a panel, so that what is level looks so."""
TITLE = "How costs grow: Phlox (solid) beside its peers (dashed); both axes are logarithmic"
UNITS = {1: "MB", 2: "s"}
"""By the number of figures: a size, or the seconds of the clock and of the processor."""

Curve = dict[int, list[float]]
"""The figures by size."""


def panels(cells: Sequence[Cell]) -> Iterator[tuple[str, str, dict[str, Curve]]]:
    """Each axis and quantity, with the curves by contestant."""
    for axis in AXES:
        of_axis = [cell for cell in cells if cell.axis == axis.name]
        quantities = dict.fromkeys(name for cell in of_axis for name in cell.figures)
        for quantity in [*(name for name in ORDER if name in quantities), *(q for q in quantities if q not in ORDER)]:
            curves: dict[str, Curve] = {}
            for cell in of_axis:
                if quantity in cell.figures:
                    # Less than a tick of the processor's time is taken to be the clock's.
                    clock, *others = cell.figures[quantity]
                    curves.setdefault(cell.contestant, {})[cell.size] = [clock, *[other or clock for other in others]]
            yield axis.name, quantity, curves


def exponents(curve: Curve, until: int | None = None) -> list[float]:
    """The local exponents between the last two sizes, up to `until`; none of a curve with one size."""
    sizes = [size for size in sorted(curve) if until is None or size <= until]
    if len(sizes) < 2:
        return []
    before, last = sizes[-2:]
    ratios = [max(b, _LEAST) / max(a, _LEAST) for a, b in zip(curve[before], curve[last], strict=True)]
    return [math.log(ratio) / math.log(last / before) for ratio in ratios]


def bends(curve: Curve, peer: Curve) -> bool:
    """Does a curve grow faster than the peer's, where both end?"""
    until = min(max(curve), max(peer))
    pairs = list(zip(exponents(curve, until), exponents(peer, until), strict=False))
    return bool(pairs) and all(ours - theirs >= MORE for ours, theirs in pairs)


def table(cells: Sequence[Cell]) -> str:
    """The exponents of the processor's seconds, or of bytes, as a Markdown table; those that bend are bold."""
    names = (*PHLOX[:2], "PyTorch", PHLOX[2], "torch.compile", PHLOX[3], "JAX and Optax")
    lines = [f"| {' | '.join(('axis', 'cost', *names))} |", f"|---|---|{'---:|' * len(names)}"]
    for axis, quantity, curves in panels(cells):
        shown: list[str] = []
        for name in names:
            found = exponents(curves.get(name, {}))
            peer = curves.get(PEER.get(name, ""))
            text = f"{found[-1] + 0.0:.2f}".replace("-0.00", "0.00") if found else ""
            shown.append(f"**{text}**" if found and peer and bends(curves[name], peer) else text)
        lines.append(f"| {' | '.join((axis, quantity, *shown))} |")
    return "\n".join(lines)


def bent(cells: Sequence[Cell]) -> list[str]:
    """The curves of Phlox that bend, as text."""
    return [
        f"{quantity} by {axis}, {name}: {_text(curves[name])}, {PEER[name]}: {_text(curves[PEER[name]])}"
        for axis, quantity, curves in panels(cells)
        for name in PHLOX
        if name in curves and PEER[name] in curves and bends(curves[name], curves[PEER[name]])
    ]


def _text(curve: Curve) -> str:
    return ", ".join(f"{size}: {curve[size][-1]:.3g}" for size in sorted(curve))


def plot(cells: Sequence[Cell], file: Path) -> None:
    """Write the plot, as SVG or PNG by the suffix."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = list(panels(cells))
    axes = list(dict.fromkeys(axis for axis, _, _ in shown))
    rows = len(axes)
    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 8, "text.color": LIGHT["ink"],
        "axes.edgecolor": LIGHT["grid"], "axes.labelcolor": LIGHT["faint"], "xtick.color": LIGHT["faint"],
        "ytick.color": LIGHT["faint"], "axes.grid": True, "grid.color": LIGHT["grid"], "grid.linewidth": 0.5,
    }  # fmt: skip
    with pyplot.rc_context(style):
        figure, grid = pyplot.subplots(rows, COLUMNS, figsize=(2.1 * COLUMNS, 2.1 * rows + 0.6), squeeze=False)
        drawn: dict[str, Any] = {}
        for panel in grid.flat:
            panel.set_axis_off()
        places = {axis: iter(row) for axis, row in zip(axes, grid, strict=True)}
        for axis, quantity, curves in shown:
            panel = next(places[axis])
            panel.set_axis_on()
            figures = 1
            for name, curve in curves.items():
                sizes = sorted(curve)
                figures = len(curve[sizes[0]])
                values = [curve[size][-1] / (1e6 if figures == 1 else 1.0) for size in sizes]
                color = COLORS.get(name) or PEER_COLORS[name]
                (drawn[name],) = panel.loglog(
                    sizes, values, "o-" if name in COLORS else "o--", color=color, markersize=2.5,
                    linewidth=1.6 if name in COLORS else 1.0,
                )  # fmt: skip
            low, high = (math.log10(limit) for limit in panel.get_ylim())
            margin = max(0.0, LEAST_DECADES - (high - low)) / 2.0
            panel.set_ylim(10 ** (low - margin), 10 ** (high + margin))
            panel.set_title(f"{quantity}, {UNITS[figures]}", fontsize=8.5, loc="left")
            panel.set_xlabel(axis, labelpad=1)
            panel.minorticks_off()
            sizes = sorted({size for curve in curves.values() for size in curve})
            panel.set_xticks(
                sizes, [f"{size:,}" if size < 10_000 else f"{size:.0e}".replace("e+0", "e") for size in sizes]
            )
        order = [name for name in (*COLORS, *PEER_COLORS) if name in drawn]
        figure.legend([drawn[name] for name in order], order, loc="upper right", ncols=len(order), frameon=False)
        figure.suptitle(TITLE, x=0.01, ha="left", fontsize=11, color=LIGHT["ink"])
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.45 / (2.1 * rows + 0.6)))
        figure.savefig(
            file, facecolor=LIGHT["paper"], dpi=110, metadata={"Date": None} if file.suffix == ".svg" else None
        )
        pyplot.close(figure)
