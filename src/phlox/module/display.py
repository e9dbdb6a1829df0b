"""How a module looks when printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from phlox.module.fields import Fields, fields_of
from phlox.module.param import Param

_WIDTH = 60


def display(module: Fields, within: tuple[Fields, ...] = ()) -> str:
    """The module as a tree: shapes of parameters, static fields, indented children; its mode if it differs."""
    if any(module is outer for outer in within):
        return f"{type(module).__name__}(...)"
    around = fields_of(within[-1]).get("training") if within else None
    lines = [f"{type(module).__name__}({_fields(module, around)})"]
    for name, child in _children(fields_of(module).items(), ""):
        first, *rest = display(child, (*within, module)).splitlines()
        lines += [f"  {name}: {first}", *(f"  {line}" for line in rest)]
    return "\n".join(lines)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, (list, tuple)):
        return enumerate(cast("list[Any]", value))
    return cast("dict[Any, Any]", value).items() if isinstance(value, dict) else ()


def _children(items: Iterable[tuple[Any, Any]], prefix: str) -> list[tuple[str, Fields]]:
    found: list[tuple[str, Fields]] = []
    for key, child in items:
        path = f"{prefix}{key}"
        if isinstance(child, Fields):
            found.append((path, child))
        else:
            found += _children(_items(child), f"{path}.")
    return found


def _fields(module: Fields, around: Any) -> str:
    shown: list[str] = []
    for name, value in fields_of(module).items():
        if name == "training" and value == around:
            continue
        if isinstance(value, Param):
            shape = [str(list(value.shape))] if value.has_shape else []
            shown.append(" ".join([name, *shape, *value.remarks()]))
        elif not isinstance(value, Fields) and not _children(_items(value), ""):
            text = repr(value)
            shown.append(f"{name}={text if len(text) <= _WIDTH else text[: _WIDTH - 3] + '...'}")
    return ", ".join(shown)
