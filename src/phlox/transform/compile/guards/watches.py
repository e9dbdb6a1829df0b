"""`Watches`: what is compared of a value from outside, by its kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from operator import eq, is_
from types import FunctionType
from typing import Any, cast

import numpy as np

from phlox.module import Module
from phlox.module.statics import ByIdentity, constant_key, key_or_none
from phlox.module.template import Template, flatten
from phlox.tensor import Tensor
from phlox.tensor.engine_arrays import is_array
from phlox.transform.compile.guards.guard import PLAIN, Fact, Like, Watch, elements, size, unread
from phlox.transform.compile.guards.libraries import is_library
from phlox.transform.compile.guards.places import Found, Place

MOST_VALUES = 1000
"""So many values in containers are compared; larger containers are compared by identity and size."""

CONTAINERS = (list, tuple, dict, set, frozenset, deque)


class Watches:
    """The watches and the facts of a function that is looked at."""

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {}
        self.unseen: dict[str, str] = {}
        """By label, what is too large to be compared."""
        self._watches: dict[tuple[tuple[Hashable, ...], Like], Watch] = {}
        self.stored: set[Hashable] = set()
        """The keys of places where the function stores something, and the ids of containers in which it does."""
        self._seen: dict[Hashable, Any] = {}
        self._left = MOST_VALUES

    def all(self) -> tuple[Watch, ...]:
        """All watches."""
        return tuple(
            [
                watch._replace(is_stored=not self.stored.isdisjoint((place, place[0])))
                for (place, _), watch in self._watches.items()
            ]
        )

    def is_new(self, what: Hashable, value: Any) -> bool:
        """Is this object looked at for the first time in this way? From now on it stays alive, for its id."""
        key = what, id(value)
        if key in self._seen:
            return False
        self._seen[key] = value
        return True

    def leaf(self, source: Found, like: Like, key: Like | None = None) -> None:
        """The program depends on this value. Another one may have an equal `key` once it is looked into."""
        if not source.places:
            return
        self._way(source)
        last = source.places[-1]
        if self._watch(last, like, source.label) and like is not unread:
            self._fact(source, (key or like)(last.value), like)

    def identity(self, source: Found) -> None:
        """The program depends on which object it is; on which code, of a function of the user's."""
        if isinstance(source.value, FunctionType) and not is_library(source.value):
            self.leaf(source, ByIdentity, _code_of)
            return
        key = _key_of_closed(source.value)
        self.leaf(source, ByIdentity if key is None else key_or_identity)
        array = cast("np.ndarray[Any, Any]", source.value)
        if isinstance(array, np.ndarray) and array.flags.writeable:  # pyright: ignore[reportUnnecessaryIsInstance]
            text = f"a NumPy array of {array.nbytes:,} bytes that can be written to"
            self.unseen[source.label] = f"{text}; make it read-only, array.flags.writeable = False, or"

    def sized(self, source: Found) -> None:
        """The program depends on the size of a container."""
        self._way(source, whole=True)
        count = len(source.value)
        self._content(source, partial(_has_size, source.value, count), count, size)

    def container(self, source: Found, use: Callable[[Found], None], *, grows: bool) -> None:
        """The program depends on what is in a container, and, unless it `grows`, on its size."""
        self._way(source, whole=True)
        value: Any = source.value
        if not self.is_new(("entries", grows), value):
            return
        cls, count = cast("type[Any]", type(value)), len(value)
        if isinstance(value, (set, frozenset)):
            copy = frozenset(cast("set[Any]", value))
            self._content(source, partial(eq, value, copy), (cls, frozenset(map(key_or_identity, copy))), size)
            return
        has_size = partial(_has_size, value, count)
        if count > self._left:
            self._content(source, has_size, (cls, count, ByIdentity(value)), size)
            self.unseen[source.label] = f"a {cls.__name__} of {count:,} values;"
            return
        self._left -= count
        keys: list[Any] = list(cast("dict[Any, Any]", value) if isinstance(value, dict) else range(count))
        if not grows:
            self._content(source, has_size, (cls, tuple(map(key_or_identity, keys))), size)
        for key in keys:
            use(source.at(Place.item(value, key), f"{source.text}[{key!r}]"))

    def array(self, source: Found) -> None:
        """The program depends on the elements of a NumPy array."""
        self._way(source, whole=True)
        array: np.ndarray[Any, Any] = source.value
        content = partial(_has_elements, array, array.dtype, array.shape, array.tobytes())
        self._content(source, content, constant_key(array), elements)

    def module(self, source: Found) -> Template | None:
        """The program depends on the structure of a module, which is returned, and on the arrays of its parameters."""
        module: Module = source.value
        try:
            if any(param.is_deferred for param in module.params()):
                raise ValueError
            arrays, aux = flatten(module)
        except Exception:  # it has no values yet, or no more
            self.leaf(source, ByIdentity)
            return None
        self._way(source, whole=True)
        content = partial(_has_arrays, module, aux.template, arrays)
        self._content(source, content, (ByIdentity(aux.template), *map(ByIdentity, arrays)))
        return aux.template

    def _way(self, source: Found, *, whole: bool = False) -> None:
        """Another object on the way to a value, or with `whole` in its place, means that it is looked for again."""
        for place in source.places if whole else source.places[:-1]:
            self._watch(place, ByIdentity, "")

    def _content(self, source: Found, is_same: Callable[[], bool], key: Hashable, like: Like = ByIdentity) -> None:
        place = Place(is_same, True, (id(source.value), "content"))
        if self._watch(place, like, source.label):
            self._fact(source, key, ByIdentity)

    def _watch(self, place: Place, like: Like, label: str) -> bool:
        key = place.key, like
        if key in self._watches:
            return False
        self._watches[key] = Watch(place.get, place.value, like, label)
        return True

    def _fact(self, source: Found, key: Hashable, like: Like) -> None:
        label, number = source.label, 1
        while label in self.facts:
            number += 1
            label = f"{source.label}, {number}"
        self.facts[label] = Fact(key, source.value, like)


def key_or_identity(value: Any) -> Hashable:
    """A key that is equal for equal values; of what could change, or cannot be compared, its identity."""
    if isinstance(value, PLAIN):
        return constant_key(value)
    key = _key_of_closed(value)
    return ByIdentity(value) if key is None else key


def _key_of_closed(value: Any) -> Hashable:
    """The key of an object of a library, such as a config or an element type; None for others."""
    is_comparable = is_library(type(value)) and not isinstance(value, Tensor) and not is_array(value)
    return key_or_none(value) if is_comparable else None


def _code_of(value: Any) -> Hashable:
    """What makes a function: with equal values around it, another one of the same code is the same."""
    return value.__code__, ByIdentity(value.__globals__)


def _has_size(value: Any, count: int) -> bool:
    return len(value) == count


def _has_elements(array: np.ndarray[Any, Any], dtype: Any, shape: tuple[int, ...], content: bytes) -> bool:
    return array.dtype == dtype and array.shape == shape and array.tobytes() == content


def _has_arrays(module: Module, template: Template, arrays: tuple[Any, ...]) -> bool:
    now, aux = flatten(module)
    return aux.template is template and all(map(is_, now, arrays))
