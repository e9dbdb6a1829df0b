"""Checks of values inside a program that is being traced, where no value can be seen.

What an eager call finds at once (an index out of range, a division by zero), a program can only report afterwards.
While checks are on, each one leaves its numbers here; the program returns them, and they are judged after the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from phlox.backend.contract.types import Array
from phlox.host.signal_guard import scope

Judge: TypeAlias = Callable[..., Exception | None]
"""`(*numbers)`: what is wrong with them, if anything."""

_HERE = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True)
class Check:
    """How many numbers are judged, how, and the line of the user's that asked for it."""

    count: int
    judge: Judge
    place: str

    def raise_for(self, numbers: Sequence[Any]) -> None:
        """Raise what is wrong with the numbers that a program returned."""
        error = self.judge(*numbers)
        if error is not None:
            raise type(error)(f"{error} (in a compiled function, at {self.place})")


class Gathered:
    """The checks of a program, and their numbers in it."""

    def __init__(self, tracer: Array) -> None:
        self.tracer = tracer
        self.checks: list[Check] = []
        self.numbers: list[Array] = []


_on: ContextVar[bool] = ContextVar("phlox_checks", default=False)
_gathered: ContextVar[Gathered | None] = ContextVar("phlox_recorded_checks", default=None)


def checks_are_on() -> bool:
    """Are programs gathered now to contain checks?"""
    return _on.get()


@contextmanager
def checks(on: bool = True) -> Generator[None]:
    """Within this scope, compiled functions report what an eager call would refuse, with the line that is to blame.

    Without it, an index out of range inside a program reads NaN (an integer: the least one) and writes nothing, which
    is never a neighbour's value in its place, but goes unnoticed. With it, every call of a compiled function waits for
    its result and then raises what the eager call would have raised: `IndexRangeError` for indices, `ZeroDivisionError`
    for integers divided by zero, `RangeError` for floats that no integer can hold. Nothing of such a call is kept:
    modules and optimizers stay as they were, and donated arguments can be used again. Programs made with and without
    checks are kept beside each other. The turns of a `phlox.scan` are checked like everything else; checks inside a raw
    JAX transformation within the function (`jax.lax.scan`) are left out.

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
def gathering(on: bool, tracer: Array) -> Generator[Gathered]:
    """Gathers the checks of the program that is traced in this scope, one of whose tracers is given."""
    found = Gathered(tracer)
    with scope(_gathered, found if on else None):
        yield found


def tracer() -> Array | None:
    """A tracer of the program that is being traced, if it gathers checks."""
    gathered = _gathered.get()
    return None if gathered is None else gathered.tracer


def leave(judge: Judge, *numbers: Array) -> None:
    """Leave numbers to be judged after the call of the program that is being traced, which gathers checks."""
    gathered = _gathered.get()
    assert gathered is not None
    gathered.checks.append(Check(len(numbers), judge, _users_line()))
    gathered.numbers.extend(numbers)


def pass_on(inside: Gathered, columns: Sequence[Array]) -> None:
    """Leave what a loop of the program has gathered: for each number in its body, the numbers of all turns."""
    gathered = _gathered.get()
    assert gathered is not None
    gathered.checks.extend(Check(check.count, _each(check.judge), check.place) for check in inside.checks)
    gathered.numbers.extend(columns)


def _each(judge: Judge) -> Judge:
    """What is wrong in the first of the turns in which anything is."""

    def judged(*columns: Sequence[Any]) -> Exception | None:
        return next(filter(None, (judge(*numbers) for numbers in zip(*columns, strict=True))), None)

    return judged


def _users_line() -> str:
    """The innermost line outside this package that led here."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
