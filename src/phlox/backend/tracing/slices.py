"""Slices and indices of open axes, with Python's meaning for every size."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from phlox.backend.tracing.dimension import as_size, is_open, larger, never_negative, smaller, terms_of
from phlox.backend.tracing.symbolic import rules_of

_BOUNDS: ContextVar[set[int] | None] = ContextVar("phlox_bounds", default=None)


@contextmanager
def noting_bounds(bounds: set[int]) -> Generator[None]:
    """Collect the numbers at which open axes are cut in this scope: a model has to be tried around these sizes."""
    token = _BOUNDS.set(bounds)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


def slice_size(entry: slice[Any, Any, Any], size: int | None = None) -> int:
    """The number of elements in a slice, with explicit bounds and a positive step, of an axis of `size`."""
    if is_open(entry.start) or is_open(entry.stop) or is_open(size):
        return -(-(entry.stop - entry.start) // entry.step)
    return len(range(entry.start, entry.stop, entry.step) if size is None else range(*entry.indices(size)))


def open_slice(entry: slice[Any, Any, Any], size: int) -> tuple[slice[Any, Any, Any], bool]:
    """A slice with an open size or bound as one with explicit bounds and a positive step, and whether to reverse it.

    Negative bounds count from the end, and all bounds are clipped to the axis, whatever the sizes will be.
    """
    step = 1 if entry.step is None else as_size(entry.step)
    if step < 0 and (entry.start is not None or entry.stop is not None or step != -1):
        raise ValueError("only a full slice of an open axis can run backwards: x[::-1]; use flip")
    start, stop = (None if bound is None else as_size(bound) for bound in (entry.start, entry.stop))
    if (noted := _BOUNDS.get()) is not None:
        noted.update(bound for bound in (start, stop) if bound is not None and not is_open(bound))
    first = 0 if start is None else _clipped(start, size)
    last = size if stop is None else _clipped(stop, size)
    return slice(first, larger(first, last), abs(step)), step < 0


def from_start(bound: int, size: int) -> int:
    """A bound on an axis counted from the start; a negative bound counts from the end."""
    return bound + _below_zero(bound) * size


def _clipped(bound: int, size: int) -> int:
    """As `from_start`, clipped to the axis."""
    below = _below_zero(bound)
    if type(below) is int:
        return larger(bound + size, 0) if below else smaller(bound, size)
    return smaller(larger(bound, 0), size) + below * larger(bound + size, 0)


def _below_zero(bound: int) -> int:
    """1 for a bound below zero, else 0; a dimension if that depends on the open axes."""
    if not is_open(bound):
        return int(bound < 0)
    if (rules := rules_of(bound)) is not None:
        is_less = rules.less(bound, 0)
        return int(is_less) if is_less is not None else smaller(larger(-bound, 0), 1)
    return 1 if never_negative(terms_of(-bound - 1)) else smaller(larger(-bound, 0), 1)
