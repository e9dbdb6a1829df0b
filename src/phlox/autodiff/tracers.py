"""Search of an object for tracers of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.device import Device

_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, slice, range, Enum, ModuleType, BuiltinFunctionType,
    np.dtype, np.generic, np.ndarray, np.ufunc, Backend, Device,
)  # fmt: skip


def is_free(x: Any, is_traced: Callable[[Any], bool], seen: dict[int, Any]) -> bool:
    """Is there certainly no tracer in x: in its fields, its elements, or the variables that it closes over?

    `seen` may be kept between calls until the first False.
    """
    stack = [x]
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen[id(x)] = x
        if is_traced(x):
            return False
        if isinstance(x, _ATOMS) or _is_array(x):
            continue
        parts = _parts(x)
        if parts is None:
            return False
        stack.extend(parts)
    return True


def _is_array(x: Any) -> bool:
    """Is x an array with values? A tensor, which has the same attributes, is not: its array may be a tracer."""
    return hasattr(x, "dtype") and hasattr(x, "shape") and not hasattr(x, "primitive")


def _parts(x: Any) -> Iterable[Any] | None:
    """The parts of an object; None if they cannot be found."""
    if isinstance(x, FunctionType):
        return [*_cells(x), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
    if isinstance(x, MethodType):
        return [x.__self__, x.__func__]
    if isinstance(x, partial):
        whole = cast("partial[Any]", x)
        return [whole.func, whole.args, whole.keywords]
    if hasattr(x, "__wrapped__"):  # a function that an engine has compiled
        return [x.__wrapped__]
    slots = [name for cls in type(x).__mro__ for name in vars(cls).get("__slots__", ())]
    has_fields = bool(slots) or hasattr(x, "__dict__")
    fields: list[Any] = [getattr(x, name) for name in slots if name != "__weakref__" and hasattr(x, name)]
    fields += cast("dict[str, Any]", getattr(x, "__dict__", {})).values()
    if isinstance(x, dict):
        whole = cast("dict[Any, Any]", x)
        return [*fields, *whole, *whole.values()]
    if isinstance(x, (tuple, list, set, frozenset)):
        return [*fields, *cast("Iterable[Any]", x)]
    return fields if has_fields else None


def _cells(function: FunctionType) -> list[Any]:
    contents: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # not bound yet
            continue
    return contents
