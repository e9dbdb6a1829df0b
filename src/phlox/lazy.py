"""Lazy imports: a package imports a submodule when one of its names is first used, which keeps startup fast.

A process that loads a model and predicts with NumPy imports no optimizer, no transformation and no unused layer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from itertools import chain
from typing import Any

from phlox.other_names import missing

_pending: dict[str, None] = {}
"""The modules that may not be imported yet."""


def lazily(
    package: str, homes: Mapping[str, str], *, here: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the package called `package`; they give it `__all__` if it has none.

    Args:
        package: the name of the package.
        homes: submodule -> the names to import from it, separated by spaces; the submodule itself is public too, and
            without names it is in `__all__`. `"*"` stands for all public names of a submodule. A name must not be that
            of a submodule: importing that submodule would replace the name in the package.
        here: the other names of `__all__`, separated by spaces.

    Type checkers see imports instead: of `homes` under TYPE_CHECKING, and of `here` as `from ... import name as name`.
    """
    home = {name: module for module, names in homes.items() if names != "*" for name in names.split()}
    whole = [f"{package}.{module}" for module, names in homes.items() if names == "*"]
    _pending.update(dict.fromkeys([f"{package}.{module}" for module in homes]))

    def public() -> list[str]:
        return list(sys.modules[package].__all__)

    def find(name: str) -> Any:
        if name in homes:
            return import_module(f"{package}.{name}")  # importing it sets the attribute of the package
        if name in home:
            found = getattr(import_module(f"{package}.{home[name]}"), name)
        elif name == "__all__":
            names = [import_module(module).__all__ for module in whole]
            found = sorted(chain(here.split(), home, [module for module in homes if not homes[module]], *names))
        elif name.startswith("_"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        elif offering := [module for module in map(import_module, whole) if name in module.__all__]:
            found = getattr(offering[0], name)
        else:
            raise missing(package, name, [*home, *public()])
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted([*public(), *(name for name in vars(sys.modules[package]) if name.startswith("__"))])


def lend(modules: Iterable[str], **names: Any) -> None:
    """Add names to modules that can import them only under TYPE_CHECKING, because they are defined on a higher floor.

    So annotations can be resolved at run time too, by `typing.get_type_hints`.
    """
    for module in modules:
        for name, value in names.items():
            vars(sys.modules[module]).setdefault(name, value)


def import_all() -> None:
    """Import all lazy modules, for code that searches all subclasses of a class."""
    while _pending:
        import_module(_pending.popitem()[0])
