"""How a module looks when printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from phlox.module.fields import Fields
from phlox.module.param import Param

_WIDTH = 60


def display(module: Fields, within: tuple[Fields, ...] = ()) -> str:
    """The module as a tree: shapes of parameters, static fields, children indented."""
    if any(module is outer for outer in within):
        return f"{type(module).__name__}(...)"
    lines = [f"{type(module).__name__}({_fields(module)})"]
    for name, child in _children(vars(module).items(), ""):
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


def _fields(module: Fields) -> str:
    shown: list[str] = []
    for name, value in vars(module).items():
        if isinstance(value, Param):
            marks = ("" if value.is_initialized else " deferred") + ("" if value.trained else " not trained")
            shown.append(f"{name} {list(value.shape)}{marks}")
        elif not isinstance(value, Fields) and not _children(_items(value), ""):
            text = repr(value)
            shown.append(f"{name}={text if len(text) <= _WIDTH else text[: _WIDTH - 3] + '...'}")
    return ", ".join(shown)
