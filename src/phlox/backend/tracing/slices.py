"""Slices and indices of open axes: they mean what they mean in Python, whatever the sizes will be."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from phlox.backend.tracing.dimension import as_size, is_open, larger, never_negative, smaller, terms_of
from phlox.backend.tracing.symbolic import rules_of

_BOUNDS: ContextVar[set[int] | None] = ContextVar("phlox_bounds", default=None)


@contextmanager
def noting_bounds(found: set[int]) -> Generator[None]:
    """Collect the numbers at which open axes are cut in this scope: a model has to be tried around these sizes."""
    token = _BOUNDS.set(found)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


def slice_size(entry: slice[Any, Any, Any], size: int | None = None) -> int:
    """How many elements a slice with explicit bounds and a positive step takes, of an axis of `size`."""
    if is_open(entry.start) or is_open(entry.stop) or is_open(size):
        return -(-(entry.stop - entry.start) // entry.step)
    return len(range(entry.start, entry.stop, entry.step) if size is None else range(*entry.indices(size)))


def open_slice(entry: slice[Any, Any, Any], size: int) -> tuple[slice[Any, Any, Any], bool]:
    """A slice of an axis where its size or a bound is open, with explicit bounds and a positive step.

    And whether its elements must then be reversed. Bounds below zero count from the end, and none leaves the axis,
    whatever the sizes will be.
    """
    step = 1 if entry.step is None else as_size(entry.step)
    if step < 0 and (entry.start is not None or entry.stop is not None or step != -1):
        raise ValueError("a slice of an open axis runs backwards only as a whole: x[::-1]; use flip")
    start, stop = (None if bound is None else as_size(bound) for bound in (entry.start, entry.stop))
    if (noted := _BOUNDS.get()) is not None:
        noted.update(bound for bound in (start, stop) if bound is not None and not is_open(bound))
    first = 0 if start is None else _clipped(start, size)
    last = size if stop is None else _clipped(stop, size)
    return slice(first, larger(first, last), abs(step)), step < 0


def from_start(bound: int, size: int) -> int:
    """A place on an axis, which counts from the end where it is below zero, from the start."""
    return bound + _below_zero(bound) * size


def _clipped(bound: int, size: int) -> int:
    """As `from_start`, and inside the axis."""
    below = _below_zero(bound)
    if type(below) is int:
        return larger(bound + size, 0) if below else smaller(bound, size)
    return smaller(larger(bound, 0), size) + below * larger(bound + size, 0)


def _below_zero(bound: int) -> int:
    """1 where it is below zero, and else 0: a size, too, where that depends on the open axes."""
    if not is_open(bound):
        return int(bound < 0)
    if (rules := rules_of(bound)) is not None:
        known = rules.less(bound, 0)
        return int(known) if known is not None else smaller(larger(-bound, 0), 1)
    return 1 if never_negative(terms_of(-bound - 1)) else smaller(larger(-bound, 0), 1)
