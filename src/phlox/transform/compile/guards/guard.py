"""`Guard`: a cheap check, at each call, that what a program was traced with outside of its arguments is the same."""

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
"""Gives equal keys to values that make no difference to a program."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, Enum, np.generic)
"""The classes of values that cannot change, and are compared as such."""


class Watch(NamedTuple):
    """A place outside of a function: how to read it, what it held, and when another value makes no difference."""

    get: Callable[[], Any]
    value: Any
    like: Like
    label: str
    is_stored: bool = False
    """Does the function itself store something there?"""


class Changes(NamedTuple):
    """What has changed while a function was traced."""

    own: dict[str, str]
    """By label, what the function has changed itself, and what was there before, to go on a sentence."""
    others: list[str]
    """What someone else has changed, so that it is not known which value the function has read."""


class Fact(NamedTuple):
    """One thing that a program depends on: a key to compare, and the value, for explanations."""

    key: Hashable
    value: Any
    like: Like

    def facet(self) -> Facet:
        """As one of all facets of a program."""
        if self.like is is_none:
            return Facet(self.key, "None" if self.value is None else "not None", _OUTSIDE)
        if isinstance(self.value, bool):
            return Facet(self.key, shown(self.value), _TRUTH)
        is_number = isinstance(self.value, (int, float, np.number))
        return Facet(self.key, described(self.value), _NUMBER if is_number else _OUTSIDE)


_OUTSIDE = "it comes from outside, and each value is a program of its own; pass it as an argument"
_NUMBER = f"{_OUTSIDE}, or to a Learner with inputs=, which is traced once"
_TRUTH = (
    "it comes from outside, and each value is a program of its own; pass a Bool tensor, and choose with phlox.where"
)


def is_none(value: Any) -> bool:
    """The key of a value that is only compared with None."""
    return value is None


def unread(value: Any) -> None:
    """The key of a value on which nothing depends but itself."""


def elements(are_same: bool) -> bool:
    """The key of a comparison of an array's elements."""
    return are_same


def size(is_same: bool) -> bool:
    """The key of a comparison of the size of a container, or of what is in a set."""
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
    """What a function reads from outside, as it was when it was looked at.

    `holds` compares identities, in a few instructions of Python whatever their number. Only where another object is
    found, its value is compared.
    """

    __slots__ = ("_known", "_values", "_watches", "again", "facts", "key", "unseen")

    def __init__(
        self,
        watches: Sequence[Watch],
        facts: Mapping[str, Fact],
        unseen: Mapping[str, str],
        again: Callable[[], Guard],
    ) -> None:
        self.unseen = unseen
        """By label, what is too large to be compared, and what to do, to go on "pass it as an argument"."""
        self.again = again
        """Look at the function again."""
        self._watches = tuple(watches)
        getters = tuple([watch.get for watch in watches])
        self._values: Callable[[], Iterable[Any]] = partial(map, call, getters)
        self._known = [watch.value for watch in watches]
        self.facts = facts
        self.key: Hashable = tuple([(label, fact.key) for label, fact in facts.items()])
        """Equal for guards of equal programs."""

    @property
    def or_none(self) -> Guard | None:
        """None if there is nothing to compare."""
        return self if self._watches else None

    def holds(self) -> bool:
        """Is everything still as it was?"""
        try:
            return all(map(is_, self._values(), self._known)) or self._is_alike()
        except Exception:  # something is no longer there, or cannot be compared
            return False

    def _is_alike(self) -> bool:
        for number, watch in enumerate(self._watches):
            value = watch.get()
            if value is not self._known[number]:
                if watch.like(value) != watch.like(self._known[number]):
                    return False
                self._known[number] = value
        return True

    def facets(self) -> dict[str, Facet]:
        """What the program depends on, by label."""
        return {label: fact.facet() for label, fact in self.facts.items()}

    def changes(self) -> Changes:
        """What has changed while the function was traced.

        What the function has changed itself counts if it is a number, a flag, a name or an array, or if it has become a
        tensor of the trace. Something else that was None before may be a cache, and so may a container that has grown.
        """
        found = Changes({}, [])
        for watch, before in zip(self._watches, self._known, strict=True):
            try:
                now = watch.get()
                if now is before or watch.like is size:
                    continue
                if not watch.is_stored and watch.like(now) == watch.like(before):
                    continue
            except Exception:
                continue
            if not watch.is_stored:
                found.others.append(watch.label)
            elif watch.like is elements:
                found.own[watch.label] = ""
            elif isinstance(before, PLAIN) and isinstance(now, PLAIN) and before is not None:
                if constant_key(now) != constant_key(before):
                    found.own[watch.label] = f", {shown(before)}"
            elif isinstance(now, Tensor) and _is_traced(cast("Tensor[Any, Any, Any]", now)):
                found.own[watch.label] = f", {described(before)}"
        return found


def _is_traced(tensor: Tensor[Any, Any, Any]) -> bool:
    return tensor.backend.is_traced(tensor.backend.strip(tensor.primitive))
