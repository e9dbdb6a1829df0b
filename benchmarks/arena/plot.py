"""The plot of the headlines: a bar for each of a dozen rows, as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from benchmarks.arena.report import shown_name, where
from benchmarks.arena.run import Run
from benchmarks.harness import Ratio

ROWS: Mapping[str, str] = {
    "MLP 64-128-10, batch 64: training": "MLP 64-128-10, training",
    "MLP 784-1024-1024-10, batch 256: training": "MLP 784-1024-1024-10, training",
    "residual CNN 32x32x3, batch 64: training": "residual CNN, training",
    "residual CNN 32x32x3, batch 64: inference": "residual CNN, inference",
    "GPT 4x256, context 128, batch 16: training": "GPT 4x256, training",
    "GPT 6x384, context 256, batch 8: training": "GPT 6x384, training",
    "GPT 6x384, context 256, batch 8: inference": "GPT 6x384, inference",
    "GPT 6x384, context 256, batch 8, dropout 0.1: training": "GPT 6x384 with dropout, training",
    "LSTM 2x256, 64 steps, batch 32: training": "LSTM 2x256, training",
    "time to the first prediction": "import and first prediction",
    "save, 0.13 GB of f32, durably": "save 0.13 GB",
    "load 0.13 GB of f32 on Torch, until every element is read": "load 0.13 GB on PyTorch, verify=False",
}
"""The headlines to show, with a shorter label: all trainings, and of the rest some of each kind."""
MOST = 12
TITLE = "Time of Phlox / best other library"
WIDTH, LEFT, RIGHT, TOP, STEP, BAR = 480, 12, 52, 74, 38, 12
SCALE = 1.45
"""How much larger it is where the page does not say how large: 700 points wide."""
FONT = "-apple-system, 'Segoe UI', Roboto, Helvetica, Arial, 'DejaVu Sans', sans-serif"
LIGHT = {
    "paper": "#ffffff", "ink": "#1b1f24", "faint": "#57606a", "grid": "#d8dee4", "faster": "#0b6e99",
    "slower": "#c4501b",
}  # fmt: skip
DARK = {
    "paper": "#14181d", "ink": "#e6edf3", "faint": "#9aa5b1", "grid": "#30363d", "faster": "#2f8fbd",
    "slower": "#d9722e",
}  # fmt: skip


def plotted(run: Run) -> list[tuple[str, Ratio]]:
    """The rows to show, with their labels; of a run with other workloads, the first dozen."""
    found = {row.workload: row for row in run.headlines}
    known = [(label, found[title]) for title, label in ROWS.items() if title in found]
    return known if len(known) == len(ROWS) else [(row.workload, row) for row in run.headlines[:MOST]]


def svg(run: Run, *, dark: bool = False) -> str:
    """The plot: dark, or light and, where the reader's system is dark, dark."""
    rows = plotted(run)
    bottom = TOP + STEP * len(rows)
    height = bottom + 82
    longest = max([1.02, *(row.high for _, row in rows)])
    unit = 0.2 if longest <= 2.0 else 1.0 if longest <= 10.0 else 10.0

    def x(ratio: float) -> float:
        return round(LEFT + ratio / longest * (WIDTH - LEFT - RIGHT), 1)

    marks = [index * unit for index in range(int(longest / unit + 1e-9) + 1)]
    on_cpu = run.machine is None or run.machine.accelerator is None
    parts = [
        f'<rect width="{WIDTH}" height="{height}" rx="6" class="paper"/>',
        _text(LEFT, 26, TITLE, "ink", 16, weight=600),
        _text(LEFT, 45, "Lower is better: left of the dashed line Phlox is faster.", "faint", 12.5),
        *(f'<path d="M{x(mark)} {TOP - 8}V{bottom + 2}" class="grid"/>' for mark in marks),
        f'<path d="M{x(1.0)} {TOP - 8}V{bottom + 2}" class="one"/>',
        *(_text(x(mark), bottom + 16, f"{mark:.1f}", "faint", 12, "middle") for mark in marks),
    ]
    for place, (label, row) in enumerate(rows):
        y = TOP + STEP * place
        color = "faster" if row.ratio <= 1.0 else "slower"
        peer = f'<tspan class="faint" font-size="12.5" dx="6">vs {escape(shown_name(row.peer))}</tspan>'
        parts += [
            f'<text x="{LEFT}" y="{y + 14}" font-size="13.5" class="ink label">{escape(label)}{peer}</text>',
            f'<rect x="{LEFT}" y="{y + 20}" width="{x(row.ratio) - LEFT:.1f}" height="{BAR}" class="{color}"/>',
            f'<path d="M{x(row.low)} {y + 26}H{x(row.high)}" class="quartiles"/>',
            _text(WIDTH - LEFT, y + 30.5, row.figure, "ink", 13.5, "end", weight=600),
        ]
    parts += [
        _text(LEFT, bottom + 36, "time of Phlox / time of the other library (a ratio, no unit)", "ink", 13),
        _text(LEFT, bottom + 54, "Median of the rounds; the thin line is from quartile to quartile.", "faint", 12),
        _text(LEFT, bottom + 71, f"{where(run)}{', no GPU, f32' if on_cpu else ''}, {run.date}", "faint", 12),
    ]
    described = "; ".join(f"{label}: {row.figure}" for label, row in rows)
    size = f'width="{WIDTH * SCALE:.0f}" height="{height * SCALE:.0f}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">',
        f"<title>{TITLE}</title>",
        f"<desc>{escape(described)}</desc>",
        f"<style>{_style(dark)}</style>",
        *parts,
        "</svg>\n",
    ])  # fmt: skip


def _style(dark: bool) -> str:
    if dark:
        return _rules(DARK)
    return f"{_rules(LIGHT)}\n@media (prefers-color-scheme: dark) {{{_rules(DARK)}}}"


def _rules(colors: Mapping[str, str]) -> str:
    fills = "".join(f".{name}{{fill:{color}}}" for name, color in colors.items() if name != "grid")
    ink, paper, grid = colors["ink"], colors["paper"], colors["grid"]
    return (
        f"{fills}.grid{{stroke:{grid}}}.one{{stroke:{ink};stroke-width:1.5;stroke-dasharray:5 3}}"
        f".quartiles{{stroke:{ink};stroke-width:2}}.label{{stroke:{paper};stroke-width:4;paint-order:stroke}}"
    )


def _text(
    x: float, y: float, text: str, name: str, size: float, anchor: str = "start", *, weight: int = 400
) -> str:  # fmt: skip
    at = f'x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text {at} class="{name}">{escape(text)}</text>'
