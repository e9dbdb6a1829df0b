"""The reproducible mode: results that depend neither on the size of a batch nor on the number of threads.

Until the mode is used for the first time, no operation looks at it. Then every engine's operations are replaced by ones
that ask which mode is on: see `phlox.backend.contract.reproducible`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import NamedTuple

from phlox.backend import settings
from phlox.host.signal_guard import scope

_mode: ContextVar[bool | None] = ContextVar("phlox_reproducible", default=None)
_lock = RLock()
_listeners: list[Callable[[], None]] = []

is_installed = settings.applied().reproducible == "1"
"""Has the mode been used, so that operations ask for it?"""


class InMode(NamedTuple):
    """What a program depends on, in the mode: it differs from the same outside."""

    rows: Hashable


def is_reproducible() -> bool:
    """Is the reproducible mode on, in this thread or task?"""
    mode = _mode.get()
    return settings.applied().reproducible == "1" if mode is None else mode


def when_installed(listener: Callable[[], None]) -> None:
    """Call `listener` when the mode is first used, which changes the functions of the engines; now if it has been."""
    if is_installed:
        listener()
    else:
        _listeners.append(listener)


def install() -> None:
    """Let operations ask which mode is on, from now on."""
    global is_installed
    with _lock:
        if not is_installed:
            is_installed = True
            # In the order in which they were added: a decorator comes after the backend that it wraps.
            for listener in _listeners:
                listener()
            _listeners.clear()


@contextmanager
def reproducible(on: bool = True) -> Generator[None]:
    """A scope in which results do not depend on the size of the batch, a row's neighbours, or the number of threads.

    One row alone gives the same bits as in any batch: on a CPU, on NumPy, PyTorch and JAX, eager and compiled. Matrices
    are multiplied in tiles of one shape, and sums are taken in pairs, in one order. docs/sameness.md says what is
    promised, what is not, and what it costs. The scope holds for its thread or task; `PHLOX_REPRODUCIBLE=1` switches
    the mode on for the whole process. A function is compiled once with the mode and once without. The derivative of an
    operation is computed in the mode of the operation.

    Operations raise `UnsupportedError` for arrays on a GPU, and for sizes that are not known while a function is
    exported.

    Args:
        on: False switches the mode off in the scope.

    >>> import phlox as px
    >>> x, weight = px.random.normal((33, 50)), px.random.normal((50, 20))
    >>> with px.reproducible():
    ...     batch, row = x @ weight, x[:1] @ weight
    >>> bool((batch[:1] == row).all())
    True
    """
    if on:
        install()
    with scope(_mode, on):
        yield
