"""Numbers that all parameters of a step share, computed once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar

from phlox.host.signal_guard import scope

T = TypeVar("T")

_found: ContextVar[dict[Any, tuple[tuple[Any, ...], Any]] | None] = ContextVar("phlox_shared_numbers", default=None)


def sharing() -> AbstractContextManager[dict[Any, tuple[tuple[Any, ...], Any]] | None]:
    """Within this scope `shared` remembers."""
    return scope(_found, {})


def shared(fn: Callable[..., T], *arguments: Any) -> T:
    """`fn` of these arguments, computed once for all parameters of a step that come with the very same ones.

    In a compiled function equal numbers are then one number of the program, not one for every parameter. Outside of a
    step, and for arguments that differ, it is a plain call.
    """
    found = _found.get()
    if found is None:
        return fn(*arguments)
    # By identity, except for integers: numbers of a program cannot be compared.
    key = (fn, *(x if type(x) is int else ("", id(x)) for x in arguments))
    if key not in found:
        found[key] = arguments, fn(*arguments)  # holding the arguments, whose identities are the key
    return found[key][1]
