"""A training as text: lines of styled pieces that fit a width, for the terminal view and `phlox watch`."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from phlox.errors import RunError
from phlox.host.text import printable
from phlox.optim.optimizer import Rate
from phlox.train.events import Plan, Values, flattened
from phlox.train.observers.callbacks.monitor import better_mode

Line = list[tuple[str, str]]
"""Pieces of text, each with its style: "", "dim", "bold", "best", "bar" or "warn"."""

_BAR = 8
"""The smallest width of a bar, in columns; with less space no bar is drawn."""
_WIDEST_BAR = 40
_EVENTS = 3
"""The number of events that are shown below the bar."""


@dataclass
class Snapshot:
    """The values of a training to show at one moment; None for values that are not known."""

    epoch: int = 1
    """The number of the running epoch, from 1."""
    epochs: int | None = None
    step: int = 0
    """Steps in this epoch."""
    steps: int | None = None
    doing: str = ""
    """The activity that interrupts the training, such as "validating"."""
    values: Values = field(default_factory=dict[str, Any])
    """The loss and metrics of this epoch so far."""
    rate: float | None = None
    """Rows a second."""
    unit: str = "rows"
    elapsed: float = 0.0
    left: float | None = None
    """Seconds."""
    lr: Rate | None = None
    memory: str = ""
    best: Sequence[Best] = ()
    events: Sequence[tuple[int, str]] = ()
    """The last (step, text)."""
    ended: str | None = None
    """How the training ended; None while it goes on."""


class Best(NamedTuple):
    """The best value so far, with its epoch."""

    name: str
    value: float
    epoch: str


def better(name: str) -> str | None:
    """Whether lower ("min") or higher ("max") values of this name are better; None if the name does not say.

    >>> better("validation/loss"), better("top5_accuracy"), better("entropy")
    ('min', 'max', None)
    """
    try:
        return better_mode(name)
    except RunError:
        return None


def is_better(name: str, value: float, than: float | None) -> bool:
    """Is a value better than `than`? None stands for no value; NaN is never better."""
    if math.isnan(value) or (way := better(name)) is None:
        return False
    return than is None or math.isnan(than) or (value < than if way == "min" else value > than)


class BestValues:
    """The best value of each name so far, with its epoch."""

    def __init__(self) -> None:
        self._best: dict[str, Best] = {}

    def add(self, epoch: str, values: Mapping[str, float]) -> set[str]:
        """Add the values of an epoch, and return the names of those that are better than all before."""
        improved: set[str] = set()
        for name, value in values.items():
            before = self._best.get(name)
            if is_better(name, value, None if before is None else before.value):
                self._best[name] = Best(name, value, epoch)
                improved.add(name)
        return improved

    def all(self) -> dict[str, Best]:
        """All best values by name."""
        return dict(self._best)

    def shown(self) -> list[Best]:
        """The best values of the validation, or else of the training; without those of single classes."""
        whole = [best for name, best in self._best.items() if not name.rpartition("/")[2].isdecimal()]
        return [best for best in whole if best.name.startswith("validation/")] or whole


def is_complete(plan: Plan, epoch: int, step: int) -> bool:
    """Were all planned epochs or steps of a training taken?"""
    return (plan.epochs is not None and epoch >= plan.epochs) or (plan.steps is not None and step >= plan.steps)


# --- numbers


def amount(name: str, value: float, *, brief: bool = False) -> str:
    """A value with the digits that matter; accuracies in percent.

    >>> amount("loss", 0.12345), amount("accuracy", 0.5), amount("loss", 12345.6), amount("loss", 1.5e-7)
    ('0.1235', '50.0%', '1.23e+04', '1.50e-07')
    """
    size = abs(value)
    if name.endswith("accuracy") and size <= 1.0:
        return f"{value:.1%}"
    if not math.isfinite(value) or isinstance(value, int):
        return str(value)
    if 0.0 < size < 1e-3 or size >= 1e4:
        return f"{value:.2e}"
    digits = 4 if size < 10 else 3 if size < 100 else 2 if size < 1000 else 1
    return f"{value:.{digits - 1 if brief else digits}f}"


def clock(seconds: float) -> str:
    """A time as 1:05, 2:01:05 or 3d 4:00:00.

    >>> clock(65), clock(7265), clock(273600)
    ('1:05', '2:01:05', '3d 4:00:00')
    """
    if not math.isfinite(seconds):
        return "?"
    minutes, remainder = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours}:{minutes:02}:{remainder:02}" if hours or days else f"{minutes}:{remainder:02}"
    return f"{days}d {text}" if days else text


def seconds_text(seconds: float) -> str:
    """A duration: `0.25 s`, `12.3 s`, `2:05`."""
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s" if seconds < 99.95 else clock(seconds)


def lr_text(lr: Rate) -> str:
    """A learning rate, or the lowest and the highest rate of several groups."""
    rates = sorted(flattened("lr", lr).values())
    if not rates:
        return ""
    return f"lr {rates[0]:.3g}" if rates[0] == rates[-1] else f"lr {rates[0]:.3g} to {rates[-1]:.3g}"


def one_line(text: object) -> str:
    """A text without line breaks and control characters, which would disturb a terminal and a parser of the output.

    >>> one_line("a\\n  b\\x1b[2J")
    'a b\\\\x1b[2J'
    """
    return printable(" ".join(str(text).split()))


def figures(values: Values) -> dict[str, str]:
    """The loss and the metrics as texts by name; of values by class the range, of matrices nothing."""
    return {name: text for name, (text, _) in _figures(values).items()}


def _figures(values: Values, prefix: str = "") -> dict[str, tuple[str, float | None]]:
    texts: dict[str, tuple[str, float | None]] = {}
    for key, value in values.items():
        name = one_line(f"{prefix}{key}")
        if isinstance(value, Mapping):
            texts |= _figures(cast("Values", value), f"{name}/")
        elif isinstance(value, (list, tuple)):
            items = [x for x in cast("list[Any]", value) if isinstance(x, (int, float)) and math.isfinite(x)]
            if items:
                texts[name] = f"{min(items):.2g}..{max(items):.2g}", None
        elif isinstance(value, (int, float)):
            texts[name] = amount(name, value), value
    return texts


# --- lines


def cells(text: str) -> int:
    """The number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def length(line: Line) -> int:
    """The number of columns that a line takes."""
    return sum(cells(text) for text, _ in line)


def cropped(line: Line, width: int) -> Line:
    """A line cut to at most `width` columns, with an ellipsis where text was cut off."""
    if length(line) <= width:
        return line
    out: Line = []
    room = max(width - 1, 0)
    for text, style in line:
        kept = ""
        for c in text:
            room -= cells(c)
            if room < 0:
                return [*out, (kept + "…"[:width], style)]
            kept += c
        out.append((kept, style))
    return out


def joined(parts: Iterable[Line], width: int, gap: str = "  ") -> Line:
    """The first parts that fit into a width, with a gap between them; the first part is cut if it does not fit."""
    out: Line = []
    for part in parts:
        if out and length(out) + len(gap) + length(part) > width:
            break
        out += [(gap, "")] * bool(out) + part
    return cropped(out, width)


class _Column(NamedTuple):
    title: str
    cell: str
    style: str
    rank: int  # with too little room, the columns of the highest rank are left out first


def epoch_label(epoch: float, epochs: int | None) -> str:
    """The number of an epoch, with the number of epochs if known; in the middle of an epoch with decimals."""
    number = str(epoch) if isinstance(epoch, int) else f"{epoch:.2f}"
    return number if epochs is None else f"{number:>{len(str(epochs))}}/{epochs}"


def epoch_lines(
    label: str, train: Values, validation: Values, seconds: float | None, best: set[str], width: int
) -> tuple[Line, Line]:
    """The head of the table of epochs, and the line of an epoch, without the least important columns if too wide.

    `label` is the label of the epoch, see `epoch_label`; `best` has the names (`validation/loss`) of values that are
    the best so far, which get a star.
    """
    columns = [_Column("epoch", label, "dim", 0)]
    of_train, of_validation = _figures(train), _figures(validation)
    for index, name in enumerate(dict.fromkeys([*of_train, *of_validation])):
        for prefix, some, title, rank in (
            ("train", of_train, name, 3 if index == 0 else 5 + index + 1000 * bool(of_validation)),
            ("validation", of_validation, f"val {name}", 1 + index if index < 2 else 5 + index),
        ):
            if name in some:
                # Training values have a star only without validation.
                star = f"{prefix}/{name}" in best and (prefix == "validation" or not of_validation)
                style = "best" if star else "dim" if prefix == "train" and of_validation else ""
                columns.append(_Column(title, some[name][0] + ("*" if star else " "), style, rank))
    if seconds is not None:
        columns.append(_Column("time", seconds_text(seconds), "dim", 4))
    widths = [max(cells(c.title) + (c.cell[-1] in "* "), cells(c.cell), 9 * (c.rank > 0)) for c in columns]
    while len(columns) > 1 and sum(widths) + len(widths) - 1 > width:
        out = max(range(len(columns)), key=lambda i: (columns[i].rank, i))
        del columns[out], widths[out]
    head: Line = [
        (_right(c.title + " " * (c.cell[-1] in "* "), w) + " ", "dim") for c, w in zip(columns, widths, strict=True)
    ]
    line: Line = [(_right(c.cell, w) + " ", c.style) for c, w in zip(columns, widths, strict=True)]
    return cropped(_stripped(head), width), cropped(_stripped(line), width)


def _right(text: str, width: int) -> str:
    return " " * (width - cells(text)) + text


def _stripped(line: Line) -> Line:
    return [*line[:-1], (line[-1][0].rstrip(), line[-1][1])]


def live_lines(now: Snapshot, width: int, *, ascii_only: bool = False) -> list[Line]:
    """The lines below the table: the running epoch, rate and time, the best values, the last events, and the end."""
    lines: list[Line] = []
    dot = " | " if ascii_only else " · "
    if now.ended is None or now.step:
        lines.append(bar_line(now, width, ascii_only=ascii_only))
    if now.ended is None:
        facts = [f"{now.rate:,.{0 if now.rate >= 10 else 2}f} {one_line(now.unit)}/s"] if now.rate else []
        facts.append(f"{clock(now.elapsed)} elapsed" if now.left is None else f"{clock(now.left)} left")
        facts += [lr_text(now.lr)] if now.lr is not None else []
        facts += [now.memory] if now.memory else []
        facts += [f"{clock(now.elapsed)} elapsed"] if now.left is not None else []
        lines.append(joined([[(fact, "")] for fact in facts if fact], width, dot))
    if now.best:
        parts: list[Line] = [
            [(f"{_short(best.name)} ", ""), (amount(best.name, best.value), "best"), (f" (epoch {best.epoch})", "dim")]
            for best in now.best
        ]
        parts[0] = [("best ", "dim"), *parts[0]]
        lines.append(joined(parts, width, dot))
    for step, text in now.events[-_EVENTS:]:
        lines.append(cropped([(f"step {step:,} ", "dim"), (one_line(text), "")], width))
    if now.ended is not None:
        lines.append(cropped([(one_line(now.ended), "bold")], width))
    return lines


def bar_line(now: Snapshot, width: int, *, ascii_only: bool = False) -> Line:
    """The running epoch: its number, a bar if its length is known, and as many values so far as fit."""
    number = str(now.epoch) if now.epochs is None else f"{now.epoch}/{now.epochs}"
    head: Line = [("epoch ", "dim"), (number, "bold")] if width >= 48 else [(number, "bold")]
    share = min(now.step / now.steps, 1.0) if now.steps else None
    done = f"{share:4.0%}" if share is not None else f"step {now.step:,}"
    if now.doing:
        done = now.doing
    parts: list[Line] = [[(f"{name} ", "dim"), (text, "")] for name, text in figures(now.values).items()]
    room = width - length(head) - 2
    if share is None or now.doing == "starting":
        return joined([head, [(done, "")], *parts], width)
    # The loss comes before the bar, and the bar before other metrics.
    tail = joined([[(done, "")], *parts[:1]], room)
    if room - length(tail) - 2 < _BAR:
        return joined([head, *([[(done, "")], *parts] if parts else [[(done, "")]])], width)
    longer = joined([[(done, "")], *parts], room - 2 - _BAR)
    tail = longer if length(longer) > length(tail) else tail
    size = min(room - length(tail) - 2, _WIDEST_BAR)
    full = round(size * share)
    on, off = ("#", "-") if ascii_only else ("━", "─")
    return [*head, ("  ", ""), (on * full, "bar"), (off * (size - full), "dim"), ("  ", ""), *tail]


def _short(name: str) -> str:
    part, _, value_name = name.partition("/")
    return one_line(f"val {value_name}" if part == "validation" else value_name)
