"""Symbolic dimensions: an engine's objects for sizes that its exporter leaves open.

Under `jax.export` and `torch.export` a shape holds objects of the engine's own class in place of some integers. They
know arithmetic, but not always whether one is less than another. What asks for that asks `less`, which is sure or says
no; so a check of shapes refuses what is certainly wrong, and leaves the rest to the program that is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class SizeRules(NamedTuple):
    """The operations on an engine's symbolic dimensions, and on numbers beside them."""

    less: Callable[[Any, Any], bool | None]
    """Is one less than the other? None if that depends on the actual sizes."""
    same: Callable[[Any, Any], bool]
    """Are they certainly equal?"""
    smaller: Callable[[Any, Any], Any]
    larger: Callable[[Any, Any], Any]
    number: Callable[[Any, bool], Any]
    """It as a scalar that operations take, an integer (false) or a real number (true)."""


RULES: dict[type, SizeRules] = {}
"""By the class of the dimensions; backends put theirs here when they are imported."""


def rules_of(*sizes: Any) -> SizeRules | None:
    """The rules if one of these is a symbolic dimension, else None.

    >>> rules_of(1, 2) is None
    True
    """
    for size in sizes:
        if type(size) in RULES:
            return RULES[type(size)]
    return None


def is_symbolic(size: Any) -> bool:
    """Is it a symbolic dimension of an engine?"""
    return type(size) in RULES


def less(one: Any, other: Any) -> bool:
    """Is one size certainly less than the other, whatever the symbolic dimensions are?

    >>> less(1, 2), less(2, 2)
    (True, False)
    """
    rules = rules_of(one, other)
    return one < other if rules is None else _surely_less(rules, one, other)


_ASSUMED: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("phlox_assumed_sizes", default=None)


@contextmanager
def noting_assumptions() -> Generator[list[tuple[Any, Any]]]:
    """Collect the pairs that `less` could not decide in this scope; it assumes that the first is not less."""
    found: list[tuple[Any, Any]] = []
    token = _ASSUMED.set(found)
    try:
        yield found
    finally:
        _ASSUMED.reset(token)


def _surely_less(rules: SizeRules, one: Any, other: Any) -> bool:
    known = rules.less(one, other)
    if known is None and (assumed := _ASSUMED.get()) is not None:
        assumed.append((one, other))
    return known is True


all_ints: Callable[[Iterable[type]], bool] = frozenset({int}).issuperset
"""Are these the types of plain ints alone? One call in C, for hot paths: `all_ints(map(type, sizes))`."""


def any_less(sizes: Sequence[Any], least: int) -> bool:
    """Is one of them certainly less than `least`?

    >>> any_less((2, 0), 1), any_less((), 1)
    (True, False)
    """
    if all_ints(map(type, sizes)):
        return min(sizes, default=least) < least
    return any(less(size, least) for size in sizes)


def differ(one: Any, other: Any) -> bool:
    """Are two sizes certainly different?

    >>> differ(1, 2), differ(2, 2)
    (True, False)
    """
    rules = rules_of(one, other)
    if rules is None:
        return one != other
    return not rules.same(one, other) and True in (rules.less(one, other), rules.less(other, one))


def real(size: Any) -> Any:
    """A size as a real number: `float(size)`, or what an operation takes for it.

    >>> real(3)
    3.0
    """
    rules = rules_of(size)
    return float(size) if rules is None else rules.number(size, True)


def whole(size: Any) -> Any:
    """A size as an integer that an operation takes.

    >>> whole(3)
    3
    """
    rules = rules_of(size)
    return size if rules is None else rules.number(size, False)


def by_shapes(cached: Any, *given: Any) -> Any:
    """Call a function that is cached by shapes; without the cache for JAX's symbolic dimensions, which are no keys."""
    try:
        return cached(*given)
    except TypeError:
        return cached.__wrapped__(*given)
