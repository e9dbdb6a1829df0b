"""Line plots: well-formed pictures of any values, whose lines stand where the values are."""

from __future__ import annotations

import math
import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from phlox.host.svg import Curve, decimated, line_plot


def test_long_curves_keep_what_stands_out() -> None:
    y = np.random.default_rng(0).normal(size=100_000)
    y[31_337], y[77_777], y[50_000] = 50.0, -40.0, math.nan
    xs, ys = decimated(list(range(100_000)), y.tolist(), points=2000)
    assert len(xs) <= 2002 and xs == sorted(xs) and xs[0] == 0 and xs[-1] == 99_999
    assert all(y[int(a)] == b for a, b in zip(xs, ys, strict=True))
    for low in range(0, 100_000, 100):
        part = [b for a, b in zip(xs, ys, strict=True) if low <= a < low + 100]
        assert min(part) == np.nanmin(y[low : low + 100]) and max(part) == np.nanmax(y[low : low + 100])
    assert decimated([0, 1, 2, 3], [math.nan] * 4, points=2)[0] == [0, 3]


def lines(text: str) -> list[list[tuple[float, float]]]:
    """The points of the curves."""
    root = ElementTree.fromstring(text)
    drawn = [node.get("d", "") for node in root.iter() if node.get("class", "").startswith("c") and node.get("d")]
    return [[(float(a), float(b)) for a, b in re.findall(r"([-\d.]+) ([-\d.]+)", d)] for d in drawn]


def test_a_line_stands_where_its_values_are() -> None:
    text = line_plot("loss", [Curve("train", [1, 2, 3], [4.0, 2.0, 0.0])], x="epoch", size=(300, 200)).html
    ((one, two, three),) = lines(text)
    assert one == (52.0, 8.0) and three == (290.0, 178.0) and two == (171.0, 93.0)
    assert 'aria-label="loss by epoch"' in text


def test_a_logarithmic_scale() -> None:
    (points,) = lines(line_plot("loss", [Curve("", [1, 10, 100], [1e-3, 1e-1, 10.0])], log_x=True, log_y=True).html)
    steps = np.diff(np.array(points), axis=0)
    np.testing.assert_allclose(steps[0], steps[1], atol=0.11)
    # Values that are not positive have no logarithm: the scale is linear.
    (points,) = lines(line_plot("loss", [Curve("", [0, 1, 2], [0.0, 1.0, 2.0])], log_x=True, log_y=True).html)
    assert points[1][0] == pytest.approx((points[0][0] + points[2][0]) / 2, abs=0.1)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("values", [
    [], [1.0], [NAN], [NAN, NAN], [1.0, NAN, 2.0, 3.0], [INF, 1.0, -INF], [0.0, 0.0], [5e-324, 1.0], [1e308, -1e308],
    [1e-320, 2e-320], [3.0, 3.0], [1e16, 1e16 + 2], [-1.0, -2.0], list(range(5000)),
], ids=range(14))  # fmt: skip
@pytest.mark.parametrize("log", [False, True])
def test_any_values(values: list[float], log: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = line_plot('<b>&"', [Curve("<i>", list(range(len(values))), values)], log_y=log, log_x=log).html
    root = ElementTree.fromstring(text)
    assert "<b>&" in "".join(root.itertext()) and "<i>" in "".join(root.itertext())
    assert len(text) < 20_000
    for line in lines(text):
        assert all(math.isfinite(x) and -1 <= x <= 321 and -1 <= y <= 181 for x, y in line)


def test_a_gap_is_no_line() -> None:
    text = line_plot("", [Curve("", [0, 1, 2, 3, 4], [0.0, 1.0, NAN, 2.0, NAN])]).html
    (points,) = lines(text)
    assert len(points) == 2 and text.count("<circle") == 1
