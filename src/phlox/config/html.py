"""Configs in notebooks: a table of their fields, nested configs folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from phlox.config.nested import Structured
from phlox.host.html import Cell, fold, header, representation, short, table


def html_of_config(config: Structured) -> str:
    """The representation of a config."""
    return representation(config, body)


def body(config: Structured) -> str:
    """The name of its class, and its fields."""
    return fold(header(type(config).__name__), fields(config), is_open=True)


def fields(config: Structured) -> str:
    """The table of its fields, and below it the nested configs."""
    rows: list[list[Cell]] = []
    nested: list[str] = []
    for name, value in vars(config).items():
        if isinstance(value, Structured):
            nested.append(_nested(name, value))
        elif parts := _configs(value):
            nested += [_nested(f"{name}{place}", part) for place, part in parts]
        else:
            rows.append([Cell(name, code=True), Cell(short(value, 200), code=True)])
    return table(["field", "value"], rows, left=2, wrap=True) + "".join(nested)


def _configs(value: Any) -> list[tuple[str, Any]]:
    """The parts of a list or dict of configs; nothing of other values."""
    if isinstance(value, Mapping):
        parts = [(f"[{key!r}]", part) for key, part in cast("Mapping[Any, Any]", value).items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"[{number}]", part) for number, part in enumerate(cast("list[Any]", value))]
    else:
        return []
    return parts if any(isinstance(part, Structured) for _, part in parts) else []


def _nested(name: str, value: Any) -> str:
    if not isinstance(value, Structured):
        return fold(header(name, short(value, 200)), "")
    return fold(header(name, type(value).__name__), fields(value), is_open=True)
