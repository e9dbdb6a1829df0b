"""The line search of L-BFGS: how far to go along a direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

ENOUGH = 1e-4
"""The sufficient part of the decrease that the slope at the start predicts: c1 of the Wolfe conditions."""

FLAT = 0.9
"""The part of the slope at the start that may remain: c2."""


class Point(NamedTuple):
    """The loss and slope at some length along a direction."""

    length: float
    loss: float
    """Infinity if the loss or its gradient is not finite."""
    slope: float
    """The derivative of the loss by the length."""
    data: Any
    """The caller's own data."""


def strong_wolfe(
    evaluate: Callable[[float], Point], start: Point, length: float, trials: int, least_width: float
) -> Point:
    """Search for a point that meets the strong Wolfe conditions; returns it, or the best point found.

    Nocedal, Wright 2006: "Numerical optimization", algorithms 3.5 and 3.6. Each length is the minimum of a cubic, with
    PyTorch's safeguards. A loss that is not finite counts as too great.

    Args:
        evaluate: returns the point at a length.
        start: the point at length zero, with a negative slope.
        length: the first length to try.
        trials: the most lengths to try after the first.
        least_width: stop when the interval is narrower than this.

    >>> def evaluate(length):
    ...     return Point(length, (length - 3.0) ** 2, 2.0 * (length - 3.0), None)
    >>> round(strong_wolfe(evaluate, evaluate(0.0), 1.0, 20, 1e-9).length, 6)
    1.0
    >>> round(strong_wolfe(evaluate, evaluate(0.0), 100.0, 20, 1e-9).length, 6)
    3.0
    """
    previous, point = start, evaluate(length)
    while trials > 0:
        if _too_high(point, start) or (previous is not start and point.loss >= previous.loss):
            break
        if _is_flat(point, start):
            return point
        if point.slope >= 0.0:
            break
        least = point.length + 0.01 * (point.length - previous.length)
        further = cubic_minimum(previous, point, least, 10.0 * point.length)
        previous, point = point, evaluate(further)
        trials -= 1
    else:
        return min(start, point, key=lambda p: p.loss)
    low, high = sorted((previous, point), key=lambda p: p.loss)
    return _between(evaluate, start, low, high, trials, least_width)


def _between(
    evaluate: Callable[[float], Point], start: Point, low: Point, high: Point, trials: int, least_width: float
) -> Point:
    """Narrow the interval around a minimum until a point is good enough; `low` has the least loss so far."""
    near_an_end = False
    while trials > 0 and abs(high.length - low.length) >= least_width:
        left, right = sorted((low.length, high.length))
        length = cubic_minimum(low, high, left, right)
        margin = 0.1 * (right - left)
        if min(right - length, length - left) >= margin:
            near_an_end = False
        elif near_an_end or not left < length < right:
            length = right - margin if right - length < length - left else left + margin
            near_an_end = False
        else:
            near_an_end = True  # once is allowed
        point = evaluate(length)
        trials -= 1
        if _too_high(point, start) or point.loss >= low.loss:
            high = point
            continue
        if _is_flat(point, start):
            return point
        if point.slope * (high.length - low.length) >= 0.0:
            high = low
        low = point
    return low


def _too_high(point: Point, start: Point) -> bool:
    return not point.loss <= start.loss + ENOUGH * point.length * start.slope


def _is_flat(point: Point, start: Point) -> bool:
    return abs(point.slope) <= -FLAT * start.slope


def cubic_minimum(first: Point, second: Point, least: float, greatest: float) -> float:
    """The minimum, within bounds, of the cubic with the losses and slopes of two points; the middle if it has none.

    >>> cubic_minimum(Point(0.0, 4.0, -4.0, None), Point(1.0, 1.0, -2.0, None), 0.0, 10.0)
    2.0
    """
    left, right = sorted((first, second), key=lambda point: point.length)
    width = right.length - left.length
    if width > 0.0 and math.isfinite(left.loss) and math.isfinite(right.loss):
        a = left.slope + right.slope - 3.0 * (right.loss - left.loss) / width
        square = a * a - left.slope * right.slope
        if 0.0 <= square < math.inf:
            root = math.sqrt(square)
            denominator = right.slope - left.slope + 2.0 * root
            minimum = right.length - width * (right.slope + root - a) / denominator if denominator else math.nan
            if math.isfinite(minimum):
                return min(max(minimum, least), greatest)
    return (least + greatest) / 2.0
