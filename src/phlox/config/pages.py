"""Configs in notebooks: a table of their fields, nested configs folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from phlox.config.nested import Structured
from phlox.host.page import Cell, Page, Part, Table
from phlox.host.text import short


def page_of_config(config: Structured) -> Page:
    """The page of a config: the name of its class, and its fields."""
    return Page("", parts=[Page(type(config).__name__, is_open=True, parts=_fields(config))])


def _fields(config: Structured) -> list[Part]:
    """The table of a config's fields, and below it the nested configs."""
    rows: list[list[Cell]] = []
    nested: list[Part] = []
    for name, value in vars(config).items():
        if isinstance(value, Structured):
            nested.append(_nested(name, value))
        elif parts := _configs(value):
            nested += [_nested(f"{name}{label}", part) for label, part in parts]
        else:
            rows.append([Cell(name, code=True), Cell(short(value, 200), code=True)])
    return [Table(["field", "value"], rows, 2, wrap=True), *nested]


def _configs(value: Any) -> list[tuple[str, Any]]:
    """The labels and configs of a list or dict of configs; empty for other values."""
    if isinstance(value, Mapping):
        parts = [(f"[{key!r}]", part) for key, part in cast("Mapping[Any, Any]", value).items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"[{index}]", part) for index, part in enumerate(cast("list[Any]", value))]
    else:
        return []
    return parts if any(isinstance(part, Structured) for _, part in parts) else []


def _nested(name: str, value: Any) -> Page:
    if not isinstance(value, Structured):
        return Page(name, [short(value, 200)])
    return Page(name, [type(value).__name__], _fields(value), is_open=True)
