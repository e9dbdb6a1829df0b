"""Scalars of schedules: Python numbers or, in a function that JAX transforms, tracers of them.

A formula is written once. Operators mean the same for both; these functions are for what would otherwise need a
branch on a value.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phlox.backend import Backend, Bool, Float, as_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.tracing.scalar import TracedScalar
from phlox.module.foreign_leaf import alike, is_proper
from phlox.tensor import Tensor, where
from phlox.tensor.dispatch import ops_of


def is_traced(x: object) -> bool:
    """Is this the tracer of a number?"""
    if isinstance(x, (int, float, np.generic, np.ndarray)):
        return False
    return isinstance(x, TracedScalar) or (getattr(x, "ndim", None) == 0 and engine().is_traced(x))


def engine() -> Backend:
    """The backend of JAX, which creates the tracers of numbers."""
    return engine_of(as_device("jax").backend)


def _tensor(x: Any) -> Any:
    """The tracer of a number as a Float tensor; Python numbers stay numbers."""
    if isinstance(x, TracedScalar):
        return Tensor.from_primitive(x.as_operand(x.backend, Float), x.backend, Float)
    if isinstance(x, (int, float)):
        return float(x)
    ops = ops_of(engine(), Float)
    if is_proper(ops, x):
        return Tensor.from_primitive(x, ops.backend, Float)
    ops_ = alike(ops, x)
    return _tensor(x * 1.0) if ops_ is None else Tensor.from_primitive(x, ops_.backend, Float)


def select(condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
    """One of two values; if the condition is traced, both are computed."""
    if not is_traced(condition):
        return if_true() if condition else if_false()
    first, second = _tensor(if_true()), _tensor(if_false())
    backend = next((x.backend for x in (first, second) if isinstance(x, Tensor)), None)
    if isinstance(condition, TracedScalar):
        is_true: Any = _tensor(condition) > 0.5
    else:
        is_true = Tensor.from_primitive(condition, engine() if backend is None else backend, Bool)
    return where(is_true, first, second).primitive


def least(a: Any, b: Any) -> Any:
    """The smaller one of two numbers."""
    return select(a < b, lambda: a, lambda: b) if is_traced(a) or is_traced(b) else min(a, b)


def cos(x: Any) -> Any:
    """The cosine."""
    return _tensor(x).cos().primitive if is_traced(x) else math.cos(x)


def power(base: float, exponent: Any) -> Any:
    """base**exponent; infinity if Python would raise, so that `step` reports it."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf


def piece(step: Any, starts: Sequence[float], values: Sequence[Callable[[], Any]]) -> Any:
    """The value of the piece that a step is in: the first one before `starts[0]`, the second one from there on, ..."""
    if not is_traced(step):
        return values[bisect_right(starts, step)]()
    value = values[0]()
    for start, next_value in zip(starts, values[1:], strict=True):
        previous = value
        value = select(step >= start, next_value, lambda previous=previous: previous)
    return value


def from_zero(step: Any) -> Any:
    """The number of a step of a schedule that may not have begun. Zero before it begins, if the number is traced."""
    return step * ((step > 0) * 1) if is_traced(step) else step
