"""A flame graph as a piece of HTML: the frames inside of a frame are below it, with widths by their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phlox.host.html import escape, filled
from phlox.host.page import Raw


@dataclass(slots=True)
class Frame:
    """One frame, and the frames inside of it."""

    name: str
    seconds: float
    kind: str
    """The kind, which decides the colour: forward, backward, other."""
    inside: list[Frame] = field(default_factory=list["Frame"])


def flame(frames: Sequence[Frame]) -> Raw:
    """The graph of these frames, side by side."""
    whole = sum(frame.seconds for frame in frames) or 1.0
    drawn = "".join(_drawn(frame, whole, whole) for frame in frames)
    return Raw(filled("phlox.debug", "flame.html", {"frames": drawn}))


def _drawn(frame: Frame, around: float, whole: float) -> str:
    width = 100.0 * min(frame.seconds / around, 1.0)
    # Rounding, and clocks, may make the parts longer than their sum.
    inner = max(frame.seconds, sum(part.seconds for part in frame.inside)) or 1.0
    title = f"{frame.name}, {frame.kind}: {frame.seconds * 1e3:.3f} ms, {frame.seconds / whole:.1%}"
    inside = "".join(_drawn(part, inner, whole) for part in frame.inside if part.seconds > 0.0)
    name = f'<button class="name" title="{escape(title)}">{escape(frame.name)}</button>'
    return (
        f'<div class="f {frame.kind}" data-w="{width:.3f}" style="width: {width:.3f}%">{name}'
        f'<div class="inside">{inside}</div></div>'
    )
