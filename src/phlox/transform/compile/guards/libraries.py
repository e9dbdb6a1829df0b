"""Which code is the user's own: not Phlox, not Python's library, not an installed package."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

_PATHS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_ROOTS = {Path(__file__).parents[3], Path(sysconfig.__file__).parent, *map(Path, _PATHS)}
_INSTALLED = {"site-packages", "dist-packages"}


@lru_cache(maxsize=4096)
def is_library_file(name: str) -> bool:
    """Is it a file of a library? Code from a prompt, a notebook or `exec` belongs to the user."""
    path = Path(name)
    return name.startswith("<frozen") or not _ROOTS.isdisjoint(path.parents) or not _INSTALLED.isdisjoint(path.parts)


def is_library(value: Any) -> bool:
    """Does this function, class or module, or the class of this object, belong to a library?

    >>> is_library(len), is_library(Path), is_library(Path()), is_library(lambda: None)
    (True, True, True, False)
    """
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        return is_library_file(value.__code__.co_filename)
    if isinstance(value, ModuleType):
        return _is_library_module(value.__name__)
    return _is_library_module(str((value if isinstance(value, type) else type(value)).__module__))


def _is_library_module(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_library_file(file) if file is not None else name.partition(".")[0] in sys.stdlib_module_names
