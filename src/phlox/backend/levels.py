"""The functions under differentiation around the running code; each has a tape of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phlox.backend.contract import Backend
from phlox.host.signal_guard import scope


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One function that is being differentiated."""

    backend: Backend
    """The backend of the leaves."""
    leaves: Callable[[], Collection[int]]
    """The ids of the nodes of the leaves."""


_levels: ContextVar[tuple[Level, ...]] = ContextVar("phlox_differentiated", default=())


levels: Callable[[], tuple[Level, ...]] = _levels.get
"""The functions that are being differentiated, the outermost first."""


def entered(level: Level) -> AbstractContextManager[tuple[Level, ...]]:
    """Within this scope (and thread or task) the level is the innermost one."""
    return scope(_levels, (*_levels.get(), level))


def resumed(levels: tuple[Level, ...]) -> AbstractContextManager[tuple[Level, ...]]:
    """Within this scope these are the levels: none in a new trace; the earlier ones when a function is run again."""
    return scope(_levels, levels)


@lru_cache(maxsize=4096)
def depth(backend: Backend) -> int:
    """The number of tapes of a backend."""
    lower = backend.without_tape()
    return 0 if lower is None else 1 + depth(lower)


def has_history(backend: Backend, x: Any) -> bool:
    """Has this array a history on any tape of the backend?"""
    while (lower := backend.without_tape()) is not None:
        if backend.node_of(x) is not None:
            return True
        x, backend = backend.value(x), lower
    return False


def is_followed(backend: Backend, x: Any) -> bool:
    """Has this array a history that a function under differentiation needs?"""
    return bool(_levels.get()) and has_history(backend, x)
