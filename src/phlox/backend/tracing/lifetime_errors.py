"""Errors for donated arrays and leaked tracers, which name the function and the argument; an engine's errors do not.

To name them, this module notes donations and traces as long as they live.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from phlox.errors import CompileError, DonatedError

ArraysOf = Callable[[Any], Iterable[Any]]

_donations: list[tuple[weakref.ref[Any], ArraysOf, str, str]] = []
_MANY = 1024
_traces: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def note_donation(holder: Any, arrays_of: ArraysOf, function: str, argument: str) -> None:
    """Note, as long as `holder` lives, that its arrays, `arrays_of(holder)`, were donated."""
    # Dead entries are removed from time to time: a callback for each would cost more than the call itself.
    if len(_donations) >= _MANY and not len(_donations) % _MANY:
        _donations[:] = [entry for entry in _donations if entry[0]() is not None]
    _donations.append((weakref.ref(holder), arrays_of, function, argument))


def donated(subject: str, array: Any) -> DonatedError:
    """The error for the use of a donated array; `subject` is "model was", or "add: a tensor was"."""
    for ref, arrays_of, function, argument in reversed(_donations):
        holder = ref()
        if holder is not None and any(array is x for x in arrays_of(holder)):
            where = f"an earlier call of {function}, as its argument {argument},"
            return DonatedError(f"{subject} donated to {where} and is used up; use what that call returned")
    return DonatedError(f"{subject} donated to an earlier call and is used up; use what that call returned")


def note_trace(trace: Any, function: str) -> None:
    """Note the function that an engine's trace belongs to."""
    _traces[trace] = function


def leaked_tracer(subject: str, trace: Any) -> CompileError:
    """The error for the use of a tracer after its trace has ended."""
    function = None if trace is None else _traces.get(trace)
    during = "inside a transformation" if function is None else f"while compiling {function}"
    return CompileError(
        f"{subject} was made {during}, which has ended, and has no value; return it from the function as a result "
        "instead of storing it"
    )
