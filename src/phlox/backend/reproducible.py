"""The reproducible mode: results that depend neither on the size of a batch nor on the number of threads.

Until the mode is used for the first time, no operation looks at it. Then every engine's operations are replaced by ones
that ask which mode is on: see `phlox.backend.contract.reproducible`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ContextDecorator
from contextvars import ContextVar
from threading import RLock
from typing import Any, NamedTuple, Self, TypeVar

from phlox.backend import settings

_F = TypeVar("_F", bound=Callable[..., Any])
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
    _listeners.append(listener)
    if is_installed:
        listener()


def install() -> None:
    """Let operations ask which mode is on, from now on."""
    global is_installed
    with _lock:
        if not is_installed:
            is_installed = True
            # In the order in which they were added: a decorator comes after the backend that it wraps.
            for listener in _listeners:
                listener()


class _Switch(ContextDecorator):
    """Switches the mode when it is made; as a scope it switches back, and as a decorator it waits for the calls."""

    def __init__(self, on: bool) -> None:
        if on:
            install()
        self._on, self._before = on, _mode.get()
        _mode.set(on)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        _mode.set(self._before)

    def __call__(self, function: _F) -> _F:
        _mode.set(self._before)
        return super().__call__(function)

    def _recreate_cm(self) -> Self:
        return type(self)(self._on)


def reproducible(on: bool = True) -> _Switch:
    """Switch the mode in which results depend on no other row, nor on the size of the batch or the number of threads.

    `px.reproducible(True)` holds from here on, and `with px.reproducible():` for the block, in their thread or task.
    `PHLOX_REPRODUCIBLE=1` switches the mode on for the whole process.

    One row alone gives the same bits as in any batch: on a CPU, on NumPy, PyTorch and JAX, eager and compiled. Matrices
    are multiplied in tiles of one shape, and sums are taken in pairs, in one order. docs/sameness.md says what is
    promised, what is not, and what it costs. A function is compiled once with the mode and once without. The derivative
    of an operation is computed in the mode of the operation.

    Operations raise `UnsupportedError` for arrays on a GPU, and for sizes that are not known while a function is
    exported.

    Args:
        on: False switches the mode off.

    >>> import phlox as px
    >>> x, weight = px.random.normal((33, 50)), px.random.normal((50, 20))
    >>> with px.reproducible():
    ...     batch, row = x @ weight, x[:1] @ weight
    >>> bool((batch[:1] == row).all())
    True
    """
    return _Switch(on)
