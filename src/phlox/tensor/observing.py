"""Observing the operations of tensors: names, arguments and results.

Inside `observed_operations(on_operation)` the tables hold wrapped operations, which ask a context variable whether
their thread or task is observing. Outside, the tables hold the backends' own operations, so there is no cost when
nothing is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import RLock
from typing import Any, TypeAlias

from phlox.host.signal_guard import scope
from phlox.tensor.dispatch import Ops, every_table

OnOperation: TypeAlias = Callable[[Ops, str, tuple[Any, ...], Any], object]
"""`(ops, name, arguments, result)`: the table of the operation, its short name, and the backend's own arrays."""

_observers: ContextVar[tuple[OnOperation, ...]] = ContextVar("phlox_observed_operations", default=())
_find = Ops._find  # pyright: ignore[reportPrivateUsage]
_counting = RLock()
_scopes = 0


@contextmanager
def observed_operations(on_operation: OnOperation) -> Generator[None]:
    """Within this scope (and thread or task), call `on_operation(ops, name, arguments, result)` after each operation.

    These are the operations that tensors dispatch to their backend; a composite (`softmax`, `conv`) is one. Operations
    inside a backend, and those of a backward pass, are not observed.

    >>> import phlox as px
    >>> with observed_operations(lambda ops, name, arguments, result: print(name)):
    ...     y = (px.ones((2,)) + 1.0).exp()
    add
    exp
    """
    _enter()
    try:
        with scope(_observers, (*_observers.get(), on_operation)):
            yield
    finally:
        _leave()


def _enter() -> None:
    global _scopes
    with _counting:
        _scopes += 1
        if _scopes == 1:
            Ops._find = _find_observed  # pyright: ignore[reportPrivateUsage]
            _clear()


def _leave() -> None:
    global _scopes
    with _counting:
        _scopes -= 1
        if not _scopes:
            Ops._find = _find  # pyright: ignore[reportPrivateUsage]
            _clear()


def _clear() -> None:
    for table in every_table():
        table.clear()  # operations are looked up again when they are next used


def _find_observed(self: Ops, name: str) -> Callable[..., Any]:
    original = _find(self, name)

    def operation(*arguments: Any) -> Any:
        result = original(*arguments)
        for on_operation in _observers.get():
            on_operation(self, name, arguments, result)
        return result

    return wraps(original)(operation) if hasattr(original, "__name__") else operation
