"""Parameters where they would not be found, and functions that keep hold of them."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias, cast

from phlox.backend import Backend
from phlox.errors import ModuleError
from phlox.module.fields import Fields
from phlox.module.param import Param

AnyFunction: TypeAlias = "FunctionType | MethodType | partial[Any]"
_FUNCTIONS = (FunctionType, MethodType, partial)
_ATOMS = frozenset([type(None), bool, int, float, complex, str, bytes, type])


def functions_in(value: Any, path: str) -> list[AnyFunction]:
    """The functions that a static value is or holds; `ModuleError` if it holds a parameter or a module.

    Collections that are no children, and objects, are searched to a depth of one collection.
    """
    if type(value) in _ATOMS or isinstance(value, (type, ModuleType, Backend)):
        return []
    if isinstance(value, _FUNCTIONS):
        return [cast("AnyFunction", value)]
    found: list[AnyFunction] = []
    for name, element in _elements(value):
        for one in (element, *_within(element)):
            if isinstance(one, (Param, Fields)):
                place = f"`{path}` holds a {type(one).__name__} in a {type(value).__name__}"
                raise ModuleError(
                    f"{place}{name and f' (its {name})'}, where it would not be found; use a list, a tuple or a dict"
                    + (", or derive the class from phlox.Module (a dataclass may, too)" if name else "")
                )
        if isinstance(element, _FUNCTIONS):
            found.append(cast("AnyFunction", element))
    return found


def _elements(value: Any) -> Iterable[tuple[str, Any]]:
    """What an object holds; what is no collection, with the names of its attributes."""
    if isinstance(value, Mapping):
        return [("", element) for element in cast("Mapping[Any, Any]", value).values()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [("", element) for element in cast("Iterable[Any]", value)]
    try:
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
        found = list(cast("dict[str, Any]", vars(value)).items())
        wrapped: Any = getattr(value, "__wrapped__", None)  # of a function that another library has compiled
        return [*found, ("", cast("Any", wrapped))] if isinstance(wrapped, _FUNCTIONS) else found
    except Exception:  # an object without fields, or with ways of its own
        return []


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, (list, tuple, set, frozenset)) else ()


def refuse_holders(functions: Iterable[tuple[str, AnyFunction]], parts: dict[int, str]) -> None:
    """`ModuleError` for a function that keeps hold of a part of the very module it is a field of.

    `parts` has the path of each part, by identity. In a copy of the module, and every transformation makes one, such a
    function would go on using the part of the first.
    """
    for path, function in functions:
        for held in _held(function, 3):
            if isinstance(held, (Param, Fields)) and id(held) in parts:
                place = parts[id(held)]
                what = f"the {type(held).__name__} at `{place}`" if place else f"the {type(held).__name__} itself"
                raise ModuleError(
                    f"`{path}` is a function that holds {what}, and would go on using this one in every copy of the "
                    "module, trained, moved or transformed; write a method, or pass it as an argument"
                )


def _held(function: Callable[..., Any], depth: int) -> Iterator[Any]:
    """What a function holds: bound, given in advance, as a default or from the scope it was written in."""
    parts: list[Any] = []
    if isinstance(function, MethodType):
        parts += [function.__self__, function.__func__]
    elif isinstance(function, partial):
        parts += [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, FunctionType):
        parts += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
    for part in parts:
        if isinstance(part, _FUNCTIONS):
            if depth:
                yield from _held(cast("AnyFunction", part), depth - 1)
        else:
            yield part
            yield from _within(part)
