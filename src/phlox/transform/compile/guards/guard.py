"""`Guard`: a cheap check, at each call, that values from outside are those with which the program was traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import call, is_
from types import FunctionType, MethodType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.module.statics import constant_key
from phlox.tensor import Tensor
from phlox.transform.compile.recompiles import Facet, shown

Like: TypeAlias = Callable[[Any], Hashable]
"""Gives equal keys to values that lead to the same program."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, Enum, np.generic)
"""The classes of immutable values, which are compared by value."""


class Watch(NamedTuple):
    """A watched slot outside of a function: how to read it, its value, and which other values make no difference."""

    get: Callable[[], Any]
    value: Any
    like: Like
    label: str
    is_stored: bool = False
    """Does the function itself assign to it?"""


class Changes(NamedTuple):
    """The changes of values from outside while a function was traced."""

    own: dict[str, str]
    """By label, the changes by the function itself; the text continues a sentence with the value before."""
    others: list[str]
    """The labels of changes by other threads, so it is unknown which value the function has read."""


class Fact(NamedTuple):
    """One thing that a program depends on: a key to compare, and the value, for explanations."""

    key: Hashable
    value: Any
    like: Like

    def facet(self) -> Facet:
        """The fact as a facet of a program."""
        if self.like is is_none:
            return Facet(self.key, "None" if self.value is None else "not None", _OUTSIDE)
        if isinstance(self.value, bool):
            return Facet(self.key, shown(self.value), _TRUTH)
        is_number = isinstance(self.value, (int, float, np.number))
        return Facet(self.key, described(self.value), _NUMBER if is_number else _OUTSIDE)


_OUTSIDE = "it comes from outside, and each value needs a program of its own; pass it as an argument"
_NUMBER = f"{_OUTSIDE}, or to a Learner with inputs=, which is traced once"
_TRUTH = (
    "it comes from outside, and each value needs a program of its own; pass a Bool tensor, and choose with phlox.where"
)


def is_none(value: Any) -> bool:
    """The key of a value that is only compared with None."""
    return value is None


def never(value: Any) -> None:
    """The key of a value on which nothing depends but the value itself."""


def elements(are_same: bool) -> bool:
    """The key of a comparison of an array's elements."""
    return are_same


def size(is_same: bool) -> bool:
    """The key of a comparison of the size of a container, or of the elements of a set."""
    return is_same


def described(value: Any) -> str:
    """A value on one line; with its address if it is compared by identity."""
    if isinstance(value, PLAIN):
        return shown(value)
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return f"a NumPy array of shape {array.shape}" + (f", {shown(array.tolist())}" if array.size <= 8 else "")
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(cast('object', value)).__name__} of {len(cast('list[Any]', value))}"
    if isinstance(value, (FunctionType, MethodType, type)):
        return f"{cast('Any', value).__qualname__} at {id(cast('object', value)):#x}"
    return f"the {type(value).__name__} at {id(value):#x}"


class Guard:
    """The values that a function reads from outside, at the time when its code was read.

    `holds` compares identities, in a few instructions of Python whatever their number. It compares values only where
    there is another object.
    """

    __slots__ = ("_expected", "_read_values", "_watches", "facts", "key", "renew", "unseen")

    def __init__(
        self,
        watches: Sequence[Watch],
        facts: Mapping[str, Fact],
        unseen: Mapping[str, str],
        renew: Callable[[], Guard],
    ) -> None:
        self.unseen = unseen
        """By label, the values that are too large to be compared, as a text that "pass it as an argument" continues."""
        self.renew = renew
        """Make a guard of the current values."""
        self._watches = tuple(watches)
        getters = tuple([watch.get for watch in watches])
        self._read_values: Callable[[], Iterable[Any]] = partial(map, call, getters)
        self._expected = [watch.value for watch in watches]
        self.facts = facts
        self.key: Hashable = tuple([(label, fact.key) for label, fact in facts.items()])
        """Equal for guards of equal programs."""

    @property
    def or_none(self) -> Guard | None:
        """None if there is nothing to compare."""
        return self if self._watches else None

    def holds(self) -> bool:
        """Are all values still the same?"""
        try:
            return all(map(is_, self._read_values(), self._expected)) or self._is_alike()
        except Exception:  # something is no longer there, or cannot be compared
            return False

    def _is_alike(self) -> bool:
        for number, watch in enumerate(self._watches):
            value = watch.get()
            if value is not self._expected[number]:
                if watch.like(value) != watch.like(self._expected[number]):
                    return False
                self._expected[number] = value
        return True

    def facets(self) -> dict[str, Facet]:
        """What the program depends on, by label."""
        return {label: fact.facet() for label, fact in self.facts.items()}

    def changes(self) -> Changes:
        """The changes while the function was traced.

        A change by the function itself counts if the value is a number, a flag, a name or an array, or if it became a
        tensor of the trace. Another value that was None before may be a cache, and so may a container that has grown.
        """
        changes = Changes({}, [])
        for watch, before in zip(self._watches, self._expected, strict=True):
            try:
                current = watch.get()
                if current is before or watch.like is size:
                    continue
                if not watch.is_stored and watch.like(current) == watch.like(before):
                    continue
            except Exception:
                continue
            if not watch.is_stored:
                changes.others.append(watch.label)
            elif watch.like is elements:
                changes.own[watch.label] = ""
            elif isinstance(before, PLAIN) and isinstance(current, PLAIN) and before is not None:
                if constant_key(current) != constant_key(before):
                    changes.own[watch.label] = f", {shown(before)}"
            elif isinstance(current, Tensor) and _is_traced(cast("Tensor[Any, Any, Any]", current)):
                changes.own[watch.label] = f", {described(before)}"
        return changes


def _is_traced(tensor: Tensor[Any, Any, Any]) -> bool:
    return tensor.backend.is_traced(tensor.backend.strip(tensor.primitive))
