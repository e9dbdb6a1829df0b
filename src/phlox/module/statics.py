"""Static values: what a module holds besides parameters and modules, and how two of them are compared.

A compiled program is made for the static values that it was traced with. So they are compared by value as they are
*now*: lists, sets and small arrays by their elements, and an object of the user's own class by itself and by its
contents, since `model.settings.scale = 10` changes what the model computes.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from types import MethodType
from typing import Any, cast

import numpy as np

from phlox.module.fields import Fields

LARGEST_CONSTANT = 65536
"""In bytes: NumPy arrays in fields up to this size are constants, compared by their elements."""


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is not a parameter and holds no parameters."""

    value: Any


@dataclass(frozen=True, slots=True)
class StaticSet(Static):
    """A set, which can be changed in place: the value is a copy of its contents."""


@dataclass(frozen=True, slots=True, eq=False)
class StaticArray(Static):
    """A NumPy array, which can be changed in place: the value is a copy."""


def static_value(value: Any) -> Any:
    """The value that a built module holds for a static value of another module."""
    match value:
        case StaticSet(inner):
            return set(inner)
        case StaticArray(inner):
            return inner.copy()
        case _:
            return value.value


def static_part(value: Any) -> Static:
    """A static value with its current contents."""
    if type(value) is set:
        return StaticSet(frozenset(cast("set[Any]", value)))
    if is_constant(value):
        return StaticArray(value.copy())
    return Static(value)


def is_constant(value: Any) -> bool:
    """Is it a NumPy array that is compared by its elements?"""
    if not isinstance(value, np.ndarray):
        return False
    array = cast("np.ndarray[Any, Any]", value)
    return array.nbytes <= LARGEST_CONSTANT and not array.dtype.hasobject


class ByIdentity:
    """A static value that is compared by identity."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def static_key(value: Any) -> Hashable:
    """A key that is equal for equal static values; 1, 1.0 and True differ. Raises `TypeError` without a hash."""
    cls = cast("type[Any]", type(value))
    if isinstance(value, float):
        return cls, value.hex()  # 0.0 and -0.0 differ, NaN and NaN are equal
    if cls is set or cls is frozenset:
        return cls, frozenset(map(static_key, cast("Iterable[Any]", value)))
    if cls is slice:
        return cls, _keys((value.start, value.stop, value.step))
    if cls is partial:
        try:
            return cls, static_key(value.func), _keys(value.args), tuple(value.keywords), _keys(value.keywords.values())
        except TypeError:
            pass  # compared by identity, as `partial` itself does
    if cls is MethodType and not isinstance(value.__self__, Fields):
        return cls, value.__func__, static_key(value.__self__)
    try:
        hashed = hash(value)
    except Exception as error:  # a __hash__ of the user's class
        raise TypeError(f"its hash fails with {type(error).__name__}: {error}") from error
    return (cls, value, _contents(value, hashed, _Seen())) if is_open(cls) else (cls, value)


MOST_CONTENTS = 1000
"""The most values in an object, and in the objects that it holds, that are compared; others by identity."""
_CLOSED = sys.stdlib_module_names | {"jax", "jaxlib", "numpy", "phlox", "torch"}
"""Packages whose objects do not change, or only in ways that do not matter here, such as a logger."""


@lru_cache(maxsize=4096)
def is_open(cls: type[Any]) -> bool:
    """Do objects of this class have attributes that can be set to other values?"""
    if issubclass(cls, (type, Enum, Fields)) or cls.__module__.partition(".")[0] in _CLOSED:
        return False
    frozen = getattr(cls, "__dataclass_params__", None)
    if frozen is not None and frozen.frozen:
        return False
    return cls.__dictoffset__ != 0 or any(_slots(cls))


def _slots(cls: type[Any]) -> Iterator[str]:
    for base in cls.__mro__:
        names = vars(base).get("__slots__", ())
        yield from [names] if isinstance(names, str) else names


def open_objects(value: Any) -> list[Any]:
    """The objects in a static value that can be changed in place: itself, or what a `partial` or a method holds."""
    cls = cast("type[Any]", type(value))
    if cls is partial:
        return [item for part in (value.func, *value.args, *value.keywords.values()) for item in open_objects(part)]
    if cls is MethodType:
        return open_objects(value.__self__)
    return [value] if is_open(cls) else []


class _Seen:
    """The objects that were visited in one comparison, and how many more values may be compared."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.remaining = MOST_CONTENTS


def _contents(value: Any, hashed: int, seen: _Seen) -> Hashable:
    """The contents of an object; if its class defines its own equality, its hash instead."""
    cls = cast("type[Any]", type(value))
    if cls.__eq__ is not object.__eq__:
        return hashed
    if id(value) in seen.numbers:
        return "again", seen.numbers[id(value)]
    seen.numbers[id(value)] = len(seen.numbers)
    attributes: dict[str, Any] = dict(getattr(value, "__dict__", ()))
    attributes |= {name: getattr(value, name) for name in _slots(cls) if name != "__dict__" and hasattr(value, name)}
    return tuple(attributes), tuple([_content(part, seen) for part in attributes.values()])


def _content(value: Any, seen: _Seen) -> Hashable:
    cls = cast("type[Any]", type(value))
    seen.remaining -= 1
    if cls in (list, tuple, dict, set, frozenset) and len(value) <= seen.remaining:
        parts: Iterable[Any] = value.items() if cls is dict else value
        keys = [_content(part, seen) for part in parts]
        return cls, frozenset(keys) if cls in (set, frozenset) else tuple(keys)
    if seen.remaining <= 0 or isinstance(value, Fields):
        return ByIdentity(value)
    if isinstance(value, (bool, int, float, complex, str, bytes)) or is_constant(value):
        return constant_key(value)
    try:
        return ByIdentity(value), _contents(value, hash(value), seen) if is_open(cls) else None
    except Exception:  # the value has no hash
        return ByIdentity(value)


def constant_key(value: Any) -> Hashable:
    """As `static_key`, for the value of a field: small NumPy arrays are compared by their elements."""
    if not isinstance(value, np.ndarray):
        return static_key(value)
    array = cast("np.ndarray[Any, Any]", value)
    if not is_constant(array):
        content = "of objects" if array.dtype.hasobject else f"of {array.nbytes} bytes"
        raise TypeError(f"it is {content}, and only arrays of numbers of up to {LARGEST_CONSTANT} bytes are compared")
    return type(array), array.dtype.str, array.shape, array.tobytes()


def key_or_none(value: Any) -> Hashable:
    """As `static_key`; None if the value has no hash."""
    try:
        return static_key(value)
    except TypeError:
        return None


def _keys(values: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple([static_key(value) for value in values])
