"""Checks of values in a compiled function, which are not known while it is traced.

A compiled function can report only after the call what an eager call reports at once (an index out of range, a division
by zero). While checks are on, each check stores here the tracers that it depends on; the compiled function returns them
as further results, and after the call the checks read their values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

from phlox.backend.contract.types import Array
from phlox.host.signal_guard import scope

FindError: TypeAlias = Callable[..., Exception | None]
"""A function of values that returns the error to raise for them, if any."""


@dataclass(frozen=True, slots=True)
class Check:
    """The number of values that a check reads, the check itself, and the line of the user's code."""

    count: int
    find_error: FindError
    line: str

    def raise_for(self, values: Sequence[Any]) -> None:
        """Raise the error, if any, for the values that a call has returned."""
        error = self.find_error(*values)
        if error is not None:
            raise type(error)(f"{error} (in a compiled function, at {self.line})")


class CollectedChecks:
    """The checks of a trace, and the tracers whose values they read."""

    def __init__(self, tracer: Array) -> None:
        self.tracer = tracer
        self.checks: list[Check] = []
        self.values: list[Array] = []


_on: ContextVar[bool] = ContextVar("phlox_checks", default=False)
_collected: ContextVar[CollectedChecks | None] = ContextVar("phlox_collected_checks", default=None)


def checks_are_on() -> bool:
    """Should functions traced now contain checks?"""
    return _on.get()


@contextmanager
def checks(on: bool = True) -> Generator[None]:
    """A scope in which compiled functions raise the errors of an eager call, with the line that caused them.

    Without it, an index out of range inside a program reads NaN (for integers, the smallest one) and writes nothing, so
    the error goes unnoticed. With it, every call of a compiled function waits for its result and then raises the error
    of the eager call: `IndexRangeError` for indices, `ZeroDivisionError` for integers divided by zero, `RangeError` for
    floats that no integer can hold. A call that raises changes nothing: modules and optimizers stay as they were, and
    donated arguments can be used again. A function is compiled once with checks and once without. In several processes,
    a call on a mesh first compares its scalars and the random streams of all of them. The steps of a `phlox.scan` are
    checked, too, but not a raw JAX transformation (`jax.lax.scan`) inside the function.

    Args:
        on: False switches the checks off in the scope.

    >>> import phlox as px
    >>> from phlox.backend import Jax
    >>> row = px.compile(lambda table, i: table.take(i))
    >>> table, i = px.ones((3, 2), device=Jax()), px.tensor([5], device=Jax())
    >>> row(table, i).tolist()
    [[nan, nan]]
    >>> with px.debug.checks():
    ...     row(table, i)
    Traceback (most recent call last):
    phlox.errors.IndexRangeError: index 5 is out of range for an axis of size 3 (in a compiled function, at ...
    """
    with scope(_on, on):
        yield


@contextmanager
def collecting(on: bool, tracer: Array) -> Generator[CollectedChecks]:
    """Collect, if `on`, the checks of the function that is traced in this scope; `tracer` is one of its tracers."""
    collected = CollectedChecks(tracer)
    with scope(_collected, collected if on else None):
        yield collected


def tracer() -> Array | None:
    """A tracer of the function that is being traced, if its checks are collected."""
    collected = _collected.get()
    return None if collected is None else collected.tracer


def add(find_error: FindError, *values: Array) -> None:
    """Add a check of these tracers to the function that is being traced, whose checks are collected."""
    collected = _collected.get()
    assert collected is not None
    collected.checks.append(Check(len(values), find_error, _users_line()))
    collected.values.extend(values)


def add_from_loop(inside: CollectedChecks, columns: Sequence[Array]) -> None:
    """Add the checks of a loop's body; for each tracer in it, `columns` has the values of all steps."""
    collected = _collected.get()
    assert collected is not None
    collected.checks.extend(Check(check.count, _of_steps(check.find_error), check.line) for check in inside.checks)
    collected.values.extend(columns)


def _of_steps(find_error: FindError) -> FindError:
    """The error of the first step that has one."""

    def find_first(*columns: Sequence[Any]) -> Exception | None:
        return next(filter(None, (find_error(*values) for values in zip(*columns, strict=True))), None)

    return find_first


def _users_line() -> str:
    """The innermost line outside of Phlox in the call stack."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("phlox."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
