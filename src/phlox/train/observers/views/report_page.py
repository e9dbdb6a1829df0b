"""The parts of a report's page: tables, matrices, images and curves, as HTML in which every text is escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from phlox.host.html import escape, parts_html
from phlox.host.page import Cell, Part, Raw, Row, Table
from phlox.host.png import png

_LARGEST_MATRIX = 40
"""With more classes, the most frequent confusions are listed in place of the matrix."""


def embedded(value: Any) -> str:
    """A value as JSON for a script in a page: its text can neither end the script nor begin a tag."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def section(title: str, parts: Sequence[Part], *, folded: bool = False) -> str:
    """A part of the page with a heading; empty without content."""
    content = parts_html(parts)
    if not content:
        return ""
    inner = f"<details><summary class=soft>show</summary>{content}</details>" if folded else content
    return f"<h2>{escape(title)}</h2>\n<div class=card>{inner}</div>\n"


# --- the confusion matrix


def matrix(values: Sequence[Sequence[float]], names: Sequence[str]) -> list[Part]:
    """A confusion matrix, a row for each expected class, and the most frequent confusions."""
    counts = np.asarray(values, np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        return []
    size = len(counts)
    labels = [names[i] if i < len(names) else str(i) for i in range(size)]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    indices = np.argwhere(counts).tolist()
    wrong = [(float(counts[i, j]), i, j) for i, j in indices if i != j]
    mistakes_shown = sorted(wrong, key=lambda mistake: (-mistake[0], mistake[1], mistake[2]))[:10]
    rows = [[labels[i], labels[j], _count(value), f"{shares[i, j]:.1%}"] for value, i, j in mistakes_shown]
    mistakes = Table(["expected", "got", "count", "of the class"], rows, 2) if rows else "Nothing is mistaken."
    if size > _LARGEST_MATRIX:
        return [mistakes]
    cells = [
        [
            Cell(labels[i], kind="soft"),
            *(Cell(_count(counts[i, j]), float(shares[i, j]), kind="ok" if i == j else "no") for j in range(size)),
        ]
        for i in range(size)
    ]
    return [Row([Table(["expected \\ got", *labels], cells, 1), mistakes])]


def _count(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.3f}"


# --- examples


class Sample(NamedTuple):
    """An example with a wrong prediction."""

    content: Any
    """The image, as an array, or the text."""
    expected: Any
    got: Any
    confidence: float | None = None


def samples(examples: Sequence[Sample], names: Sequence[str]) -> Raw:
    """Wrong predictions: image or text, the expected class and the predicted one."""
    cards: list[str] = []
    for sample in examples:
        if isinstance(sample.content, str):
            text = sample.content if len(sample.content) <= 400 else sample.content[:400] + "…"
            shown = f"<p class=text>{escape(text)}</p>"
        else:
            data = base64.b64encode(png(sample.content)).decode()
            shown = f'<img alt="" src="data:image/png;base64,{data}">'
        sure = "" if sample.confidence is None else f" ({sample.confidence:.1%})"
        expected, got = _label(sample.expected, names), _label(sample.got, names)
        cards.append(
            f"<div class=card>{shown}<p>{escape(got)}{sure}</p><p class=soft>expected {escape(expected)}</p></div>"
        )
    return Raw(f"<div class=samples>{''.join(cards)}</div>" if cards else "")


def _label(value: Any, names: Sequence[str]) -> str:
    number = int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else -1
    return names[number] if 0 <= number < len(names) else str(value)
