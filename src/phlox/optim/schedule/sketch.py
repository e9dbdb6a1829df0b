"""Plots of curves as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from phlox.errors import OptimizerError

_BARS = "▁▂▃▄▅▆▇█"


def sketch(curves: Mapping[str, Sequence[float]], steps: int, width: int) -> str:
    """A line of at most `width` bars for each curve, after its name; a bar shows the greatest value of its steps.

    >>> print(sketch({"": [0.0, 1.0, 2.0, 7.0]}, 4, 60))
    ▁▂▃█  0 to 7 in 4 steps
    """
    if width < 1:
        raise OptimizerError(f"width must be at least one, got {width}; there is nothing to draw")
    longest = max(map(len, curves))
    gap = "  " if longest else ""
    reach = f"in {steps} step{'s' if steps > 1 else ''}"
    return "\n".join(
        f"{name:{longest}}{gap}{bars(values, width)}  {min(values):.4g} to {max(values):.4g} {reach}"
        for name, values in curves.items()
    )


def bars(values: Sequence[float], width: int) -> str:
    """At most `width` bars from zero to the greatest value; each bar shows the greatest value of its steps."""
    columns = min(width, len(values))
    ends = [column * len(values) // columns for column in range(columns + 1)]
    heights = [max(values[start:end]) for start, end in pairwise(ends)]
    top = max(heights)
    return "".join(_BARS[min(int(height / top * len(_BARS)), len(_BARS) - 1) if top else 0] for height in heights)
