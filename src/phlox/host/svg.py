"""Line plots as SVG inside a page, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from phlox.host.html import escape
from phlox.host.page import Raw

POINTS = 2000
"""The approximate number of points of a curve that are drawn."""
_COLORS = ("#2563eb", "#c2410c", "#0f766e", "#7c3aed")
"""The colors if a page drops the style; otherwise the classes c0 to c3 have the colors."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 22


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a plot; values that are not finite are gaps."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def line_plot(
    title: str,
    curves: Sequence[Curve],
    *,
    x: str = "",
    log_x: bool = False,
    log_y: bool = False,
    percent: bool = False,
    size: tuple[int, int] = (320, 180),
) -> Raw:
    """Curves over one x as a figure; the last value of each is in its legend.

    Logarithmic scales are for positive values; if some values are not positive, the scale is linear.
    """
    points = [_thinned(curve) for curve in curves]
    xs, ys = [v for curve in points for v in curve.x], [v for curve in points for v in curve.y if math.isfinite(v)]
    legend = "".join(
        f'<span class="soft"><i class="key c{number % 4}"></i>{escape(curve.label)} '
        f"{_format(curve.y[-1], percent) if len(curve.y) else ''}</span> "
        for number, curve in enumerate(curves)
    )
    caption = f"<div><b>{escape(title)}</b></div><div>{legend}</div>"
    if not ys:
        return Raw(f"<figure>{caption}<p>no finite values</p></figure>")
    width, height = size
    across = _Scale(xs, _LEFT, width - _RIGHT, log_x)
    up = _Scale(ys, height - _BOTTOM, _TOP, log_y)
    parts: list[str] = []
    for value in up.ticks(5):
        level = up(value)
        parts.append(
            f'<path d="M{_LEFT} {level:.1f}H{width - _RIGHT}" stroke="#808080" stroke-opacity=".28"/>'
            f'<text x="{_LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{_format(value, percent)}</text>'
        )
    is_counted = all(value.is_integer() for value in xs)  # there is no epoch 1.2
    parts += [
        f'<text x="{across(value):.1f}" y="{height - 6}" text-anchor="middle">{_format(value, False)}</text>'
        for value in across.ticks(6)
        if not is_counted or float(value).is_integer()
    ]
    if x:
        middle, height = (_LEFT + width - _RIGHT) / 2, height + 14
        parts.append(f'<text x="{middle:.1f}" y="{height - 5}" text-anchor="middle">{escape(x)}</text>')
    for number, curve in enumerate(points):
        color = f'class="c{number % 4}" stroke="{_COLORS[number % 4]}"'
        line, alone = _path(curve, across, up)
        parts.append(f'<path d="{line}" {color} fill="none" stroke-width="1.8" stroke-linejoin="round"/>')
        parts += [f'<circle cx="{at:.1f}" cy="{to:.1f}" r="2" {color} fill="none"/>' for at, to in alone]
    said = f"{title} by {x}" if x else title
    return Raw(
        f'<figure>{caption}<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(said)}">{"".join(parts)}</svg></figure>'
    )


def decimated(x: Sequence[float], y: Sequence[float], points: int = POINTS) -> tuple[list[float], list[float]]:
    """A curve with about `points` points: the least and the greatest value of each bin along it, and both ends.

    Values that are not finite are gaps; a bin of nothing else keeps one.

    >>> decimated([0, 1, 2, 3, 4, 5, 6, 7], [0, 9, 1, 1, 2, -5, 1, 0], points=4)
    ([0, 1, 4, 5, 7], [0, 9, 2, -5, 0])
    """
    count = len(y)
    if count <= points:
        return list(x), list(y)
    values = np.asarray(y, np.float64)
    indices = {0, count - 1}
    edges = np.linspace(0, count, max(points // 2, 1) + 1).astype(int)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        finite = np.flatnonzero(np.isfinite(values[low:high]))
        if len(finite):
            part = values[low:high][finite]
            indices |= {low + int(finite[part.argmin()]), low + int(finite[part.argmax()])}
        else:
            indices.add(low)
    ordered = sorted(indices)
    return [x[i] for i in ordered], [y[i] for i in ordered]


def _thinned(curve: Curve) -> Curve:
    """A curve with as many points as can be distinguished in a plot."""
    x, y = decimated(curve.x, curve.y, 600)
    return Curve(curve.label, [float(v) for v in x], [float(v) for v in y])


class _Scale:
    """Maps values to coordinates of the plot."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self.low, self.high = min(values), max(values)
        self.log = log and self.low > 0.0 and math.isfinite(math.log10(self.low))
        if not self.low < self.high:
            reach = 0.5 * abs(self.low) or 0.5
            self.low, self.high = self.low - reach, self.high + reach
        self.start, self.end = start, end
        self._from, self._to = self._at(self.low), self._at(self.high)

    def _at(self, value: float) -> float:
        # Halved, so that the reach of the largest floats is finite.
        return math.log10(value) if self.log else 0.5 * value

    def __call__(self, value: float) -> float:
        share = (self._at(value) - self._from) / ((self._to - self._from) or 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """Round values in the range, about `count`."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            for steps in ((1,), (1, 3), (1, 2, 3, 5, 7)):
                ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
                ticks = [value for value in ticks if self.low <= value <= self.high]
                if len(ticks) >= 2:
                    return ticks[:: -(-len(ticks) // (count + 1))]
        rough = (0.5 * self.high - 0.5 * self.low) / count * 2.0
        power = 10.0 ** math.floor(math.log10(rough)) if 0.0 < rough < math.inf else 0.0
        if not power or not math.isfinite(power):
            return [self.low, self.high]
        step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)
        first = math.ceil(self.low / step)
        ticks = [round((first + number) * step, 12) if step > 1e-9 else (first + number) * step for number in range(12)]
        return [value for value in ticks if self.low <= value <= self.high] or [self.low, self.high]


def _path(curve: Curve, across: _Scale, up: _Scale) -> tuple[str, list[tuple[float, float]]]:
    """The lines between the gaps, and the single points between two gaps."""
    lines: list[str] = []
    single_points: list[tuple[float, float]] = []
    for is_finite, run in groupby(zip(curve.x, curve.y, strict=True), key=lambda point: math.isfinite(point[1])):
        points = [(across(x), up(y)) for x, y in run] if is_finite else []
        if len(points) == 1:
            single_points += points
        elif points:
            lines.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points))
    return "".join(lines), single_points


def _format(value: float, percent: bool) -> str:
    if percent and math.isfinite(value):
        return f"{100.0 * value:.4g}%"
    return f"{value:.4g}" if abs(value) < 1e5 or not math.isfinite(value) else f"{value:.1e}"
