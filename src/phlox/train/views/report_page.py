"""The parts of a report's page: tables, matrices, images and curves, as HTML in which every text is escaped."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.errors import DataError
from phlox.train.views.text import better

POINTS = 2000
"""About so many points of a curve are drawn."""
_LARGEST_MATRIX = 40
"""Of more classes a list of what is mistaken for what is shown, and no matrix."""
_LARGEST_IMAGE = 160
"""Larger images are shown with fewer pixels."""


class Cell(NamedTuple):
    """A cell of a table with a class of its own."""

    text: str
    kind: str


def page(parts: Mapping[str, str]) -> str:
    """The page: the template with its places filled, all at once, so that no text can bring in another place."""
    template = resources.files("phlox.train.views").joinpath("report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def embedded(value: Any) -> str:
    """A value as JSON that may stand in a script of a page: it cannot end that, nor begin a tag."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def section(title: str, content: str, *, folded: bool = False) -> str:
    """A part of the page with a heading; nothing without content."""
    if not content:
        return ""
    inner = f"<details><summary class=soft>show</summary>{content}</details>" if folded else content
    return f"<h2>{escape(title)}</h2>\n<div class=card>{inner}</div>\n"


def table(heads: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, wrap: bool = False) -> str:
    """A table; cells that look like numbers are aligned to the right. `wrap` breaks long texts."""
    if not rows:
        return ""
    numbers = {place for place in range(len(heads)) if all(_is_number(row[place]) for row in rows if place < len(row))}
    head = "".join(f"<th{' class=n' * (i in numbers)}>{escape(name)}</th>" for i, name in enumerate(heads))
    body: list[str] = []
    for row in rows:
        cells: list[str] = []
        for place, cell in enumerate(row):
            kinds = [*["n"] * (place in numbers), *([cell.kind] if isinstance(cell, Cell) and cell.kind else [])]
            text = cell.text if isinstance(cell, Cell) else cell
            attribute = ' class="' + " ".join(kinds) + '"' if kinds else ""
            cells.append(f"<td{attribute}>{escape(text)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    top = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    lines = "\n".join(body)
    return f'<div class="scroll{" wrap" * wrap}"><table>{top}<tbody>\n{lines}\n</tbody></table></div>'


def _is_number(cell: str | Cell) -> bool:
    text = cell.text if isinstance(cell, Cell) else cell
    return re.fullmatch(r"[-+]?[\d,]*\.?\d*(e[-+]?\d+)?%?|nan|-?inf|–", text) is not None


def number(value: float) -> str:
    """A number with six digits.

    >>> number(0.123456789), number(12), number(float("nan")), number(1234567)
    ('0.123457', '12', 'nan', '1,234,567')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


# --- curves


def decimated(x: Sequence[float], y: Sequence[float], points: int = POINTS) -> tuple[list[float], list[float]]:
    """A curve of about so many points: of each bin along its course the least and the greatest, and both ends.

    Values that are not finite are gaps; a bin of them alone keeps one.

    >>> decimated([0, 1, 2, 3, 4, 5, 6, 7], [0, 9, 1, 1, 2, -5, 1, 0], points=4)
    ([0, 1, 4, 5, 7], [0, 9, 2, -5, 0])
    """
    count = len(y)
    if count <= points:
        return list(x), list(y)
    values = np.asarray(y, np.float64)
    kept = {0, count - 1}
    edges = np.linspace(0, count, max(points // 2, 1) + 1).astype(int)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        finite = np.flatnonzero(np.isfinite(values[low:high]))
        if len(finite):
            part = values[low:high][finite]
            kept |= {low + int(finite[part.argmin()]), low + int(finite[part.argmax()])}
        else:
            kept.add(low)
    places = sorted(kept)
    return [x[i] for i in places], [y[i] for i in places]


def curve(
    label: str, x: Sequence[float], y: Sequence[float], best: tuple[float, float] | None = None
) -> dict[str, Any]:
    """A curve of a plot, as the page draws it; `best` is the point that is marked."""
    xs, ys = decimated(x, y)
    finite = [value if math.isfinite(value) else None for value in ys]
    return {"label": label, "x": xs, "y": finite, "best": None if best is None else list(best)}


def plot(name: str, x: str, series: Sequence[dict[str, Any]], *, percent: bool = False) -> dict[str, Any]:
    """Curves over one x. Losses and rates are drawn in a logarithmic scale where they are positive and far apart."""
    values = [value for one in series for value in one["y"] if value is not None]
    log = bool(values) and min(values) > 0.0 and max(values) / min(values) > 30.0 and better(name) == "min"
    return {"name": name, "x": x, "series": list(series), "percent": percent, "log": log, "whole": True}


# --- what the model takes for what


def matrix(values: Sequence[Sequence[float]], names: Sequence[str]) -> str:
    """A confusion matrix, a row for each expected class, and what is mistaken for what most often."""
    counts = np.asarray(values, np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        return ""
    size = len(counts)
    labels = [names[i] if i < len(names) else str(i) for i in range(size)]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    places = np.argwhere(counts).tolist()
    wrong = [(float(counts[i, j]), i, j) for i, j in places if i != j]
    most = sorted(wrong, key=lambda one: (-one[0], one[1], one[2]))[:10]
    rows = [[labels[i], labels[j], _count(value), f"{shares[i, j]:.1%}"] for value, i, j in most]
    mistakes = table(["expected", "got", "count", "of the class"], rows) or "<p>Nothing is mistaken.</p>"
    if size > _LARGEST_MATRIX:
        return mistakes
    lines = [
        f"<tr><th>{escape(labels[i])}</th>"
        + "".join(
            f'<td class={"ok" if i == j else "no"} style="--a:{shares[i, j]:.3f}">{_count(counts[i, j])}</td>'
            for j in range(size)
        )
        + "</tr>"
        for i in range(size)
    ]
    head = "".join(f"<th>{escape(label)}</th>" for label in labels)
    whole = (
        f"<table class=matrix><thead><tr><th>expected \\ got</th>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    return f'<div class="two{" one" * (size > 5)}"><div class=scroll>{whole}</div><div>{mistakes}</div></div>'


def _count(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.3f}"


# --- examples


class Sample(NamedTuple):
    """An example that a model took for something else."""

    content: Any
    """The image, as an array, or the text."""
    expected: Any
    got: Any
    confidence: float | None = None


def samples(some: Sequence[Sample], names: Sequence[str]) -> str:
    """Examples that went wrong: image or text, what was expected, what came out."""
    cards: list[str] = []
    for one in some:
        if isinstance(one.content, str):
            text = one.content if len(one.content) <= 400 else one.content[:400] + "…"
            shown = f"<p class=text>{escape(text)}</p>"
        else:
            data = base64.b64encode(png(one.content)).decode()
            shown = f'<img alt="" src="data:image/png;base64,{data}">'
        sure = "" if one.confidence is None else f" ({one.confidence:.1%})"
        expected, got = _label(one.expected, names), _label(one.got, names)
        cards.append(
            f"<div class=card>{shown}<p>{escape(got)}{sure}</p><p class=soft>expected {escape(expected)}</p></div>"
        )
    return f"<div class=samples>{''.join(cards)}</div>" if cards else ""


def _label(value: Any, names: Sequence[str]) -> str:
    number = int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else -1
    return names[number] if 0 <= number < len(names) else str(value)


def png(image: Any) -> bytes:
    """An image as a PNG: [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels.

    Integers are 0 to 255; floats 0 to 1, or, where they are outside, stretched from their least to their greatest.

    Raises `DataError` for another shape.
    """
    pixels = np.asarray(image)
    shape = pixels.shape
    if pixels.ndim == 3 and shape[2] not in (1, 3, 4) and shape[0] in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, 2)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise DataError(f"an image of shape {shape} cannot be shown; give [H, W], [H, W, C] or [C, H, W], C = 1, 3, 4")
    stride = -(-max(pixels.shape[:2]) // _LARGEST_IMAGE)
    pixels = pixels[::stride, ::stride]
    if pixels.dtype == np.bool_:
        pixels = pixels * np.uint8(255)
    elif not np.issubdtype(pixels.dtype, np.integer):
        values = np.nan_to_num(pixels.astype(np.float64))
        low, high = values.min(), values.max()
        if low < 0.0 or high > 1.0:
            values = (values - low) / max(high - low, 1e-300)
        pixels = np.rint(255.0 * values)
    rows = np.clip(pixels, 0, 255).astype(np.uint8)
    height, width, channels = rows.shape
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    colour = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# --- the model


def model_table(model: Any) -> str:
    """Every parameter of a module, or of a dict of modules: path, shape, number of scalars, whether it is trained."""
    modules: Mapping[str, Any] = cast("Mapping[str, Any]", model) if isinstance(model, Mapping) else {"": model}
    rows: list[list[str | Cell]] = []
    total = trained = 0
    for name, module in modules.items():
        if not hasattr(module, "named_params"):
            continue
        for path, param in module.named_params():
            count = math.prod(param.shape)
            total += count
            trained += count * bool(param.trained)
            shape = " × ".join(map(str, param.shape)) or "scalar"
            rows.append([f"{name}/{path}" if name else path, shape, f"{count:,}", "yes" if param.trained else "no"])
    if not rows:
        return ""
    more = len(rows) - POINTS
    note = f"<p class=soft>and {more:,} more</p>" if more > 0 else ""
    sums = f"<p><b>{total:,}</b> parameters in {len(rows):,} arrays, <b>{trained:,}</b> of them trained</p>"
    return sums + table(["parameter", "shape", "count", "trained"], rows[:POINTS], wrap=True) + note
