"""Scalars of a step (learning rates, counts and values computed from them), computed once for all of its parameters.

In a compiled function they are traced scalars. These functions only do arithmetic on them, so they mean the same in
eager mode and in a program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar

from phlox.backend import Backend
from phlox.backend.contract.update import Real
from phlox.host.signal_guard import scope

T = TypeVar("T")

_cache: ContextVar[dict[Any, tuple[tuple[Any, ...], Any]] | None] = ContextVar("phlox_shared_scalars", default=None)


def sharing() -> AbstractContextManager[dict[Any, tuple[tuple[Any, ...], Any]] | None]:
    """Within this scope `shared` caches its results."""
    return scope(_cache, {})


def shared(fn: Callable[..., T], *arguments: Any) -> T:
    """`fn(*arguments)`, computed once for all parameters of a step that pass the same objects.

    A compiled function then has one scalar for all of them. Outside a step, and for other arguments, it is a plain
    call.
    """
    cache = _cache.get()
    if cache is None:
        return fn(*arguments)
    # By identity, except for integers: traced scalars cannot be compared.
    key = (fn, *[x if type(x) is int else ("", id(x)) for x in arguments])
    if key not in cache:
        cache[key] = arguments, fn(*arguments)  # keeps the arguments alive, because their identities are the key
    return cache[key][1]


def counted(time: Any, backend: Backend, *betas: float) -> tuple[Any, ...]:
    """The count after one more step, and 1 - beta ** count for every beta: once for all parameters of a step."""
    return shared(_counted, time, backend, *betas)


def _counted(time: Any, backend: Backend, *betas: float) -> tuple[Any, ...]:
    time = time + 1
    count, expm1 = real(time, backend), math.expm1 if isinstance(time, int) else backend.scalar_expm1
    return time, *[-expm1(count * math.log(beta)) if beta else 1.0 for beta in betas]


def real(count: Any, backend: Backend) -> Real:
    """A count, or a comparison, as a real number of the backend's precision.

    An engine's own conversion of a traced scalar may give 32 bits.
    """
    if isinstance(count, (int, float)) or not backend.is_traced_scalar(count):
        return count * 1.0
    return count * backend.as_device_scalar(1.0)


def chosen(condition: Any, if_true: Real, if_false: Real, backend: Backend) -> Real:
    """One of two finite scalars, selected by a comparison of scalars."""
    first = real(condition, backend)
    return first * if_true + (1.0 - first) * if_false


def least(a: Real, b: Real, backend: Backend) -> Real:
    """The smaller one of two scalars."""
    return chosen(a < b, a, b, backend)


def greatest(a: Real, b: Real, backend: Backend) -> Real:
    """The greater one of two scalars."""
    return chosen(a > b, a, b, backend)
