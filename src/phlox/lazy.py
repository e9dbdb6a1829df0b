"""Packages that import a module of theirs when one of its names is first asked for: starting costs what is used.

A process that loads a model and predicts with NumPy imports no optimizer, no transformation and no layer but its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from phlox.other_names import in_module

_pending: dict[str, None] = {}
"""The modules that nobody has asked for yet, perhaps."""


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the package called `package`.

    Args:
        package: its name.
        homes: by module of the package, which is offered too, the names that are taken from it, separated by spaces.
            None of them may be a module's: whoever imports that module would put it in the place of what was meant.
    """
    home = {name: f"{package}.{module}" for module, names in homes.items() for name in names.split()}
    _pending.update(dict.fromkeys(f"{package}.{module}" for module in homes))

    def public() -> list[str]:
        return list(sys.modules[package].__all__)

    def find(name: str) -> Any:
        if name in homes:
            return import_module(f"{package}.{name}")  # which is an attribute of the package from now on
        if name not in home:
            if name.startswith("_"):
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            raise AttributeError(in_module(package, name, [*home, *public()]))
        found = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted([*public(), *(name for name in vars(sys.modules[package]) if name.startswith("__"))])


def lend(modules: Iterable[str], **names: Any) -> None:
    """Give modules names that they could import for type checkers alone, since these stand above them.

    So that annotations mean something while a program runs too: `typing.get_type_hints`.
    """
    for module in modules:
        for name, value in names.items():
            vars(sys.modules[module]).setdefault(name, value)


def import_all() -> None:
    """Import all that is lazy: for whoever looks among all subclasses of a class."""
    while _pending:
        import_module(_pending.popitem()[0])
