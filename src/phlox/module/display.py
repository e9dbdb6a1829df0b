"""How a module looks when printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.module.param import Param

if TYPE_CHECKING:
    from phlox.module.module import Module


def display(module: Module) -> str:
    """The module as a tree: shapes of parameters, static fields, children indented."""
    lines = [f"{type(module).__name__}({_fields(module)})"]
    for name, child in _children(module, ""):
        first, *rest = display(child).splitlines()
        lines += [f"  {name}: {first}", *(f"  {line}" for line in rest)]
    return "\n".join(lines)


def _children(value: Any, prefix: str) -> list[tuple[str, Module]]:
    from phlox.module.module import Module

    if isinstance(value, Module):
        items: Any = value._fields().items()  # pyright: ignore[reportPrivateUsage]
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)  # pyright: ignore[reportUnknownArgumentType]
    else:
        items = value.items()
    found: list[tuple[str, Module]] = []
    for key, child in items:
        path = f"{prefix}{key}"
        if isinstance(child, Module):
            found.append((path, child))
        elif isinstance(child, (list, tuple, dict)):
            found += _children(child, f"{path}.")
    return found


def _fields(module: Module) -> str:
    from phlox.module.module import Module

    shown: list[str] = []
    for name, value in module._fields().items():  # pyright: ignore[reportPrivateUsage]
        if isinstance(value, Param):
            marks = ("" if value.is_initialized else " deferred") + ("" if value.trained else " not trained")
            shown.append(f"{name} {list(value.shape)}{marks}")
        elif isinstance(value, Module) or (isinstance(value, (list, tuple, dict)) and _children(value, "")):
            continue
        else:
            text = repr(value)
            shown.append(f"{name}={text if len(text) <= 60 else text[:57] + '...'}")
    return ", ".join(shown)
