"""The text of a module when it is printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from phlox.module.fields import Fields, fields_of
from phlox.module.param import Param

_WIDTH = 60


def display(module: Fields, ancestors: tuple[Fields, ...] = ()) -> str:
    """The module as a tree: shapes of parameters, static fields, indented children; its mode if it differs."""
    if any(module is ancestor for ancestor in ancestors):
        return f"{type(module).__name__}(...)"
    outer_mode = fields_of(ancestors[-1]).get("training") if ancestors else None
    lines = [f"{type(module).__name__}({_fields(module, outer_mode)})"]
    for field, value in fields_of(module).items():
        for name, child in _children(value, field):
            first, *more_lines = display(child, (*ancestors, module)).splitlines()
            lines += [f"  {name}: {first}", *(f"  {line}" for line in more_lines)]
    return "\n".join(lines)


def parts_of(value: Any, name: str) -> Iterator[tuple[str, Fields | Param]]:
    """The modules and parameters of a field, also in lists and dicts, with their paths within the module."""
    if isinstance(value, (Fields, Param)):
        yield name, value
    elif isinstance(value, (list, tuple, dict)):
        items = (
            cast("dict[Any, Any]", value).items() if isinstance(value, dict) else enumerate(cast("list[Any]", value))
        )
        for key, part in items:
            yield from parts_of(part, f"{name}.{key}")


def _children(value: Any, name: str) -> list[tuple[str, Fields]]:
    return [(path, part) for path, part in parts_of(value, name) if isinstance(part, Fields)]


def _fields(module: Fields, outer_mode: Any) -> str:
    shown: list[str] = []
    for name, value in fields_of(module).items():
        if name == "training" and value == outer_mode:
            continue
        if isinstance(value, Param):
            shape = [str(list(value.shape))] if value.has_shape else []
            shown.append(" ".join([name, *shape, *value.remarks()]))
        elif not _children(value, name):
            text = repr(value)
            shown.append(f"{name}={text if len(text) <= _WIDTH else text[: _WIDTH - 3] + '...'}")
    return ", ".join(shown)
