"""Symbolic dimensions: an engine's objects for sizes that its exporter leaves open.

In `jax.export` and `torch.export`, a shape has objects of the engine's own class in place of some integers. They
support arithmetic, but not every comparison. So code calls `less`, which is true only if it is certain: a check of
shapes then refuses only what is certainly wrong, and leaves other errors to the exported program.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class SizeRules(NamedTuple):
    """The operations on an engine's symbolic dimensions, and on numbers beside them."""

    less: Callable[[Any, Any], bool | None]
    """Is the first less than the second? None if that depends on the actual sizes."""
    same: Callable[[Any, Any], bool]
    """Are they certainly equal?"""
    smaller: Callable[[Any, Any], Any]
    larger: Callable[[Any, Any], Any]
    number: Callable[[Any, bool], Any]
    """A dimension as a scalar for operations: an integer (false) or a real number (true)."""


RULES: dict[type, SizeRules] = {}
"""Rules by the class of the dimensions; backends add theirs when they are imported."""


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


def less(lhs: Any, rhs: Any) -> bool:
    """Is one size certainly less than the other, whatever the symbolic dimensions are?

    >>> less(1, 2), less(2, 2)
    (True, False)
    """
    rules = rules_of(lhs, rhs)
    return lhs < rhs if rules is None else _surely_less(rules, lhs, rhs)


_ASSUMED: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("phlox_assumed_sizes", default=None)


@contextmanager
def noting_assumptions() -> Generator[list[tuple[Any, Any]]]:
    """Collect the pairs that `less` could not decide in this scope; it assumes that the first is not less."""
    pairs: list[tuple[Any, Any]] = []
    token = _ASSUMED.set(pairs)
    try:
        yield pairs
    finally:
        _ASSUMED.reset(token)


def _surely_less(rules: SizeRules, lhs: Any, rhs: Any) -> bool:
    is_less = rules.less(lhs, rhs)
    if is_less is None and (assumed := _ASSUMED.get()) is not None:
        assumed.append((lhs, rhs))
    return is_less is True


all_ints: Callable[[Iterable[type]], bool] = frozenset({int}).issuperset
"""Are these the types of plain ints alone? One call in C, for hot paths: `all_ints(map(type, sizes))`."""


def any_less(sizes: Sequence[Any], least: int) -> bool:
    """Is one of the sizes certainly less than `least`?

    >>> any_less((2, 0), 1), any_less((), 1)
    (True, False)
    """
    if all_ints(map(type, sizes)):
        return min(sizes, default=least) < least
    return any(less(size, least) for size in sizes)


def differ(lhs: Any, rhs: Any) -> bool:
    """Are two sizes certainly different?

    >>> differ(1, 2), differ(2, 2)
    (True, False)
    """
    rules = rules_of(lhs, rhs)
    if rules is None:
        return lhs != rhs
    return not rules.same(lhs, rhs) and True in (rules.less(lhs, rhs), rules.less(rhs, lhs))


def real(size: Any) -> Any:
    """A size as a real number: `float(size)`, or a scalar for operations.

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


def by_shapes(cached: Any, *arguments: Any) -> Any:
    """Call a function that is cached by shapes; without its cache for JAX's symbolic dimensions, which have no hash."""
    try:
        return cached(*arguments)
    except TypeError:
        return cached.__wrapped__(*arguments)
