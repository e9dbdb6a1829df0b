"""What is remembered of compiled functions for the sake of their users' errors: whose an array is that cannot be used.

An array that was donated, and a tracer of a trace that has ended, are of no use to anyone; what an engine says
of them names neither the function nor the argument.
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
    """Remember, as long as it lives, that what this object holds was donated; `arrays_of(holder)` are its arrays."""
    # Those that are gone are left out now and then: being told of each would cost more than the rest of a call.
    if len(_donations) >= _MANY and not len(_donations) % _MANY:
        _donations[:] = [known for known in _donations if known[0]() is not None]
    _donations.append((weakref.ref(holder), arrays_of, function, argument))


def donated(subject: str, array: Any) -> DonatedError:
    """What to say where a donated array is used: `subject` is "model was", or "add: a tensor was"."""
    for ref, arrays_of, function, argument in reversed(_donations):
        holder = ref()
        if holder is not None and any(array is one for one in arrays_of(holder)):
            where = f"an earlier call of {function}, as its argument {argument},"
            return DonatedError(f"{subject} donated to {where} and is used up; use what that call returned")
    return DonatedError(f"{subject} donated to an earlier call and is used up; use what that call returned")


def note_trace(trace: Any, function: str) -> None:
    """Remember which function an engine's trace is of."""
    _traces[trace] = function


def leaked_tracer(subject: str, trace: Any) -> CompileError:
    """What to say where a tracer is used after its trace has ended."""
    function = None if trace is None else _traces.get(trace)
    during = "inside a transformation" if function is None else f"while compiling {function}"
    return CompileError(
        f"{subject} was made {during}, which has ended, and has no value; return it from the function as a result "
        "instead of storing it"
    )
