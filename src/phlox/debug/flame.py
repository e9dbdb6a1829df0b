"""A flame graph as a piece of HTML: what is inside of a frame stands below it, as wide as it is long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phlox.host.html import escape


@dataclass(slots=True)
class Frame:
    """One frame, and those inside of it."""

    name: str
    seconds: float
    kind: str
    """What it is coloured by: forward, backward, other."""
    inside: list[Frame] = field(default_factory=list["Frame"])


class Flame(NamedTuple):
    """A flame graph, for a page."""

    html: str
    style: str
    script: str


_STYLE = """
.flame { display: flex; min-height: 24px; margin: 14px 0 18px; font-size: 12px; }
.flame .f { min-width: 0; flex: 0 1 auto; overflow: hidden; } .flame .row { display: flex; }
.flame .name { display: block; width: 100%; box-sizing: border-box; height: 22px; padding: 1px 5px; overflow: hidden;
  white-space: nowrap; text-overflow: ellipsis; text-align: left; font: inherit; color: inherit; cursor: pointer;
  border: 1px solid var(--back); border-radius: 3px; background: rgb(var(--c) / .45); }
.flame .name:hover, .flame .name:focus-visible { background: rgb(var(--c) / .7); }
.flame .forward { --c: 59 130 246; } .flame .backward { --c: 232 89 12; } .flame .other { --c: 128 128 128; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 5px 0 14px; }
"""
# A click makes a frame as wide as the graph; a second one shows all again.
_SCRIPT = """
const all = [...document.querySelectorAll('.flame .f')];
document.querySelector('.flame').addEventListener('click', event => {
  const chosen = event.target.closest('.f');
  if (!chosen) return;
  const again = chosen.dataset.chosen;
  all.forEach(one => { one.style.width = one.dataset.w + '%'; one.hidden = false; delete one.dataset.chosen; });
  if (again) return;
  chosen.dataset.chosen = 1;
  for (let one = chosen; one && one.classList.contains('f'); one = one.parentElement.closest('.f')) {
    [...one.parentElement.children].forEach(other => { if (other !== one) other.hidden = true; });
    one.style.width = '100%';
  }
});
"""


def flame(frames: Sequence[Frame]) -> Flame:
    """The graph of these frames, side by side."""
    whole = sum(frame.seconds for frame in frames) or 1.0
    drawn = "".join(_drawn(frame, whole, whole) for frame in frames)
    legend = "".join(
        f'<i style="background: rgb({colour} / .55)"></i>{name}'
        for name, colour in (("forward", "59 130 246"), ("backward", "232 89 12"), ("other", "128 128 128"))
    )
    html = f'<p class="legend soft">A frame stands above what is inside of it; a click zooms.{legend}</p>'
    return Flame(f'{html}<div class="flame">{drawn}</div>', _STYLE, _SCRIPT)


def _drawn(frame: Frame, around: float, whole: float) -> str:
    width = 100.0 * min(frame.seconds / around, 1.0)
    # Rounding, and clocks, may make the parts longer than their sum.
    inner = max(frame.seconds, sum(one.seconds for one in frame.inside)) or 1.0
    title = f"{frame.name}, {frame.kind}: {frame.seconds * 1e3:.3f} ms, {frame.seconds / whole:.1%}"
    inside = "".join(_drawn(one, inner, whole) for one in frame.inside if one.seconds > 0.0)
    name = f'<button class="name" title="{escape(title)}">{escape(frame.name)}</button>'
    return (
        f'<div class="f {frame.kind}" data-w="{width:.3f}" style="width: {width:.3f}%">{name}'
        f'<div class="row">{inside}</div></div>'
    )
