"""`Watches`: how values from outside are compared, by their kind."""

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
from phlox.transform.compile.guards.guard import PLAIN, Fact, Like, Watch, elements, never, size
from phlox.transform.compile.guards.libraries import is_library
from phlox.transform.compile.guards.slots import Outside, Slot

MOST_VALUES = 1000
"""The number of values in containers that are compared; larger containers are compared by identity and size."""

CONTAINERS = (list, tuple, dict, set, frozenset, deque)


class Watches:
    """The watches and the facts of one function."""

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {}
        self.unseen: dict[str, str] = {}
        """By label, the values that are too large to be compared."""
        self._watches: dict[tuple[tuple[Hashable, ...], Like], Watch] = {}
        self.stored: set[Hashable] = set()
        """The keys of slots to which the function assigns, and the ids of containers that it changes."""
        self._seen: dict[Hashable, Any] = {}
        self._num_left = MOST_VALUES

    def all(self) -> tuple[Watch, ...]:
        """All watches."""
        return tuple(
            [
                watch._replace(is_stored=not self.stored.isdisjoint((slot, slot[0])))
                for (slot, _), watch in self._watches.items()
            ]
        )

    def is_new(self, purpose: Hashable, value: Any) -> bool:
        """Is this object new for this purpose? From now on it stays alive, because its id is a key."""
        key = purpose, id(value)
        if key in self._seen:
            return False
        self._seen[key] = value
        return True

    def leaf(self, source: Outside, like: Like, key: Like | None = None) -> None:
        """The program depends on this value; another value with an equal `key` gives the same program."""
        if not source.slots:
            return
        self._watch_path(source)
        last = source.slots[-1]
        if self._watch(last, like, source.label) and like is not never:
            self._fact(source, (key or like)(last.value), like)

    def identity(self, source: Outside) -> None:
        """The program depends on the identity of this object; for a function of the user, on its code."""
        if isinstance(source.value, FunctionType) and not is_library(source.value):
            self.leaf(source, ByIdentity, _code_of)
            return
        key = _key_of_closed(source.value)
        self.leaf(source, ByIdentity if key is None else key_or_identity)
        array = cast("np.ndarray[Any, Any]", source.value)
        if isinstance(array, np.ndarray) and array.flags.writeable:  # pyright: ignore[reportUnnecessaryIsInstance]
            text = f"a NumPy array of {array.nbytes:,} bytes that can be written to"
            self.unseen[source.label] = f"{text}; make it read-only, array.flags.writeable = False, or"

    def sized(self, source: Outside) -> None:
        """The program depends on the size of a container."""
        self._watch_path(source, whole=True)
        count = len(source.value)
        self._content(source, partial(_has_size, source.value, count), count, size)

    def container(self, source: Outside, use: Callable[[Outside], None], *, grows: bool) -> None:
        """The program depends on the values in a container, and on its size unless it `grows`."""
        self._watch_path(source, whole=True)
        value: Any = source.value
        if not self.is_new(("entries", grows), value):
            return
        cls, count = cast("type[Any]", type(value)), len(value)
        if isinstance(value, (set, frozenset)):
            copy = frozenset(cast("set[Any]", value))
            self._content(source, partial(eq, value, copy), (cls, frozenset(map(key_or_identity, copy))), size)
            return
        has_size = partial(_has_size, value, count)
        if count > self._num_left:
            self._content(source, has_size, (cls, count, ByIdentity(value)), size)
            self.unseen[source.label] = f"a {cls.__name__} of {count:,} values;"
            return
        self._num_left -= count
        keys: list[Any] = list(cast("dict[Any, Any]", value) if isinstance(value, dict) else range(count))
        if not grows:
            self._content(source, has_size, (cls, tuple(map(key_or_identity, keys))), size)
        for key in keys:
            use(source.at(Slot.item(value, key), f"{source.text}[{key!r}]"))

    def array(self, source: Outside) -> None:
        """The program depends on the elements of a NumPy array."""
        self._watch_path(source, whole=True)
        array: np.ndarray[Any, Any] = source.value
        content = partial(_has_elements, array, array.dtype, array.shape, array.tobytes())
        self._content(source, content, constant_key(array), elements)

    def module(self, source: Outside) -> Template | None:
        """The program depends on the structure of a module, which is returned, and on the arrays of its parameters."""
        module: Module = source.value
        try:
            if any(param.is_deferred for param in module.params()):
                raise ValueError
            arrays, aux = flatten(module)
        except Exception:  # it has no values yet, or was donated
            self.leaf(source, ByIdentity)
            return None
        self._watch_path(source, whole=True)
        content = partial(_has_arrays, module, aux.template, arrays)
        self._content(source, content, (ByIdentity(aux.template), *map(ByIdentity, arrays)))
        return aux.template

    def _watch_path(self, source: Outside, *, whole: bool = False) -> None:
        """Watch the objects on the way to a value, and with `whole` the value's own, by identity."""
        for slot in source.slots if whole else source.slots[:-1]:
            self._watch(slot, ByIdentity, "")

    def _content(self, source: Outside, is_same: Callable[[], bool], key: Hashable, like: Like = ByIdentity) -> None:
        slot = Slot(is_same, True, (id(source.value), "content"))
        if self._watch(slot, like, source.label):
            self._fact(source, key, ByIdentity)

    def _watch(self, slot: Slot, like: Like, label: str) -> bool:
        key = slot.key, like
        if key in self._watches:
            return False
        self._watches[key] = Watch(slot.get, slot.value, like, label)
        return True

    def _fact(self, source: Outside, key: Hashable, like: Like) -> None:
        label, number = source.label, 1
        while label in self.facts:
            number += 1
            label = f"{source.label}, {number}"
        self.facts[label] = Fact(key, source.value, like)


def key_or_identity(value: Any) -> Hashable:
    """A key that is equal for equal values; the identity of values that can change or cannot be compared."""
    if isinstance(value, PLAIN):
        return constant_key(value)
    key = _key_of_closed(value)
    return ByIdentity(value) if key is None else key


def _key_of_closed(value: Any) -> Hashable:
    """The key of an object of a library, such as a config or an element type; None for others."""
    is_comparable = is_library(type(value)) and not isinstance(value, Tensor) and not is_array(value)
    return key_or_none(value) if is_comparable else None


def _code_of(value: Any) -> Hashable:
    """The key of a function: a function with the same code and globals is the same, if its closure is equal."""
    return value.__code__, ByIdentity(value.__globals__)


def _has_size(value: Any, count: int) -> bool:
    return len(value) == count


def _has_elements(array: np.ndarray[Any, Any], dtype: Any, shape: tuple[int, ...], content: bytes) -> bool:
    return array.dtype == dtype and array.shape == shape and array.tobytes() == content


def _has_arrays(module: Module, template: Template, arrays: tuple[Any, ...]) -> bool:
    current, aux = flatten(module)
    return aux.template is template and all(map(is_, current, arrays))
