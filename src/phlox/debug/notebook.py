"""`to_html`: the page that a notebook shows for a value, as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from phlox.host.html import document, preformatted
from phlox.host.page import MOST_ROWS, Page, Part, Raw
from phlox.host.text import short
from phlox.metrics.pages import page_of_results


def to_html(value: Any, path: str | os.PathLike[str] | None = None, *, title: str | None = None) -> str:
    """Make an HTML page of a value, as a notebook shows it, for light and dark screens; returns its text.

    Args:
        value: a value with `_repr_html_`, such as a tensor, module, optimizer, record, report, history or result of
            metrics; any other is shown by its `repr`. Each part of dicts, lists and tuples is shown.
        path: the file to write; None writes none. It needs no other file and no network.
        title: the title of the page; by default the class of the value.

    >>> import phlox as px
    >>> text = px.debug.to_html({"weights": px.ones((2, 3)), "loss": 0.5}, title="after one epoch")
    >>> "after one epoch" in text, "Float f32" in text
    (True, True)
    """
    return document(title or type(value).__name__, Page("", parts=[_part(value, 0)]), path)


def _part(value: Any, depth: int) -> Part:
    make = getattr(cast("Any", type(value)), "_repr_html_", None)
    if make is not None:
        return Raw(str(make(value)))
    if isinstance(value, Mapping) and value and all(map(_is_result, cast("Mapping[Any, Any]", value).values())):
        return replace(page_of_results({str(k): v for k, v in cast("Mapping[Any, Any]", value).items()}), is_open=True)
    if isinstance(value, Mapping) and depth < 8:
        return _parts([(str(k), v) for k, v in cast("Mapping[Any, Any]", value).items()], depth)
    if isinstance(value, (list, tuple)) and depth < 8:
        return _parts([(str(n), v) for n, v in enumerate(cast("list[Any]", value))], depth)
    plain = cast("Any", value)
    return preformatted(repr(plain) if isinstance(value, np.ndarray) else short(plain, 2000))


def _is_result(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) or (isinstance(value, np.ndarray) and value.ndim in (1, 2))


def _parts(parts: list[tuple[str, Any]], depth: int) -> Page:
    note = f"and {len(parts) - MOST_ROWS:,} more" if len(parts) > MOST_ROWS else ""
    shown = [Page(name, parts=[_part(value, depth + 1)], is_open=True) for name, value in parts[:MOST_ROWS]]
    return Page("", parts=[*shown, note])
