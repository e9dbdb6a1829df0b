"""Parameters where a module does not find them, and functions that hold parameters."""

from __future__ import annotations

import dataclasses
import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MappingView
from functools import partial
from types import BuiltinMethodType, FunctionType, GeneratorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import Backend
from phlox.errors import ModuleError
from phlox.module.fields import Fields
from phlox.module.param import Param
from phlox.module.reference import Reference

AnyFunction: TypeAlias = "FunctionType | MethodType | BuiltinMethodType | partial[Any] | Reference[Any]"
_FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType, partial)
_ATOMS = frozenset([type(None), bool, int, float, complex, str, bytes, type])


def functions_in(value: Any, path: str) -> list[AnyFunction]:
    """The functions and references that a static value is or holds; `ModuleError` if it holds a parameter or a module.

    Collections that are not children, objects and iterators are searched to a depth of one collection.
    """
    if type(value) in _ATOMS or isinstance(value, (type, ModuleType, Backend)):
        return []
    if isinstance(value, (*_FUNCTIONS, Reference)):
        return [cast("AnyFunction", value)]
    functions: list[AnyFunction] = []
    for name, element in _elements(value):
        for part in (element, *_within(element)):
            if isinstance(part, (Param, Fields)):
                message = f"`{path}` holds a {type(part).__name__} in a {type(value).__name__}"
                raise ModuleError(
                    f"{message}{name and f' (its {name})'}, where it is not found; use a list, a tuple or a dict"
                    + (", or derive the class from phlox.Module (a dataclass may, too)" if name else "")
                    + (_OR_REFER if isinstance(part, Fields) else "")
                )
        if isinstance(element, (*_FUNCTIONS, Reference)):
            functions.append(cast("AnyFunction", element))
    return functions


_OR_REFER = "; for a model that another object owns, use phlox.reference(model)"


def _elements(value: Any) -> Iterable[tuple[str, Any]]:
    """The contents of an object; if it is not a collection, with the names of its attributes."""
    if isinstance(value, Mapping):
        return [("", element) for element in cast("Mapping[Any, Any]", value).values()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [("", element) for element in cast("Iterable[Any]", value)]
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return [("", element) for element in array.flat] if array.dtype.hasobject else []
    if isinstance(value, GeneratorType):
        frame = cast("GeneratorType[Any, Any, Any]", value).gi_frame
        variables = {} if frame is None else frame.f_locals
        iterated = [item for v in variables.values() if _is_builtin_iterator(v) for item in _referents(v, 3)]
        return [*variables.items(), *(("", item) for item in iterated)]
    if _is_builtin_iterator(value):
        return [("", element) for element in _referents(value, 3)]
    try:
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
        attributes = [*_slots(value), *cast("dict[str, Any]", getattr(value, "__dict__", {})).items()]
        wrapped: Any = getattr(value, "__wrapped__", None)  # the original of a function that another library compiled
        return [*attributes, ("", cast("Any", wrapped))] if isinstance(wrapped, _FUNCTIONS) else attributes
    except Exception:  # an object whose attributes cannot be read
        return []


_BUILTIN = ("builtins", "collections", "itertools")


def _is_builtin_iterator(value: Any) -> bool:
    return type(value).__module__ in _BUILTIN and isinstance(value, (Iterator, MappingView))


def _referents(value: Any, depth: int) -> Iterator[Any]:
    """The objects that a view or an iterator runs over, without consuming it."""
    for referent in gc.get_referents(value):
        if isinstance(referent, type):
            continue
        yield referent
        if depth and isinstance(referent, (dict, list, tuple, Iterator, MappingView)):
            yield from _referents(cast("Any", referent), depth - 1)


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for base in cast("type[Any]", type(value)).__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            if isinstance(vars(base).get(name), MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, (list, tuple, set, frozenset)) else ()


def refuse_holders(functions: Iterable[tuple[str, AnyFunction]], parts: dict[int, str]) -> None:
    """Raise `ModuleError` for a function that holds a module or parameter, and for a reference to a part of the module.

    `parts` has the path of each part, by identity. In a copy of the module (every transformation makes one) the
    function would still use the part of the original.
    """
    for path, function in functions:
        for part in _parts_held_by(function, 3):
            if not isinstance(part, (Param, Fields)):
                continue
            subject = f"`{path}` is a {'reference to' if isinstance(function, Reference) else 'function that holds'}"
            kind, part_path = type(part).__name__, parts.get(id(part))
            if part_path is not None:
                where = f"the {kind} at `{part_path}`" if part_path else f"the {kind} itself"
                raise ModuleError(
                    f"{subject} {where}, and would still use this one in every copy of the module (trained, moved or "
                    "transformed); write a method, or pass it as an argument"
                )
            if not isinstance(function, Reference):
                raise ModuleError(
                    f"{subject} a {kind}, where it is not found; make it a field of its own and write a "
                    f"method, or pass it as an argument{_OR_REFER}"
                )


def _parts_held_by(function: Any, depth: int) -> Iterator[Any]:
    """The objects that a function holds: bound, as partial arguments, as defaults or from its enclosing scope."""
    parts: list[Any] = []
    if isinstance(function, Reference):
        yield cast("Reference[Any]", function).target
        return
    if isinstance(function, MethodType):
        parts += [function.__self__, function.__func__]
    elif isinstance(function, BuiltinMethodType):
        parts += [] if isinstance(function.__self__, ModuleType) else [function.__self__]
    elif isinstance(function, partial):
        bound = cast("partial[Any]", function)
        parts += [bound.func, *bound.args, *bound.keywords.values()]
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
                yield from _parts_held_by(part, depth - 1)
        else:
            yield part
            yield from _within(part)
