"""Ctrl-C at any moment: `SignalGuard` defers it, `commit` is all or nothing, `scope` restores a variable.

Python runs the handler of a signal between any two instructions of the main thread, and the handler of Ctrl-C raises
`KeyboardInterrupt` there. While a model is half updated, the handler has to wait.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Generic, Self, TypeVar

_T = TypeVar("_T")

# The C module that `signal` wraps, if there is one: `signal` makes enums of results, which takes ten times as long.
_signals: Any = sys.modules.get("_signal", signal)
_signal, _getsignal = _signals.signal, _signals.getsignal
_DEFERRED = (int(signal.SIGINT), int(signal.SIGTERM))
"""Ctrl-C, and the request to terminate, which programs that save their state handle."""


class SignalGuard:
    """A scope that defers the Python handlers of Ctrl-C and SIGTERM to its end.

    A signal without a Python handler acts at once. A guard does nothing inside another guard, and on threads other than
    the main one, where no handlers run. A handler is called once for each signal that has arrived.

    Args:
        holds: called when a signal arrives; says whether it must wait. It is not called after `hold`.
        undo: called if a handler raises at the end, before the exception continues: then the caller does not get the
            result.
    """

    __slots__ = ("_before", "_handler", "_holds", "_pending", "undo")

    def __init__(self, holds: Callable[[], bool] | None = None, undo: Callable[[], object] | None = None) -> None:
        self._holds = holds
        self.undo = undo
        self._before: dict[int, Any] = {}
        self._pending: list[int] = []
        self._handler: Any = None

    def hold(self) -> None:
        """From now on all signals wait."""
        self._holds = None

    def deliver(self) -> None:
        """Call the handlers of the signals that have arrived."""
        while self._pending:
            number = self._pending.pop(0)
            self._before[number](number, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def __enter__(self) -> Self:
        self._handler = self._receive  # one object, to recognize it at the end
        try:
            for number in _DEFERRED:
                before = _getsignal(number)
                if callable(before):
                    self._before[number] = before
                    _signal(number, self._handler)
        except BaseException as error:
            self._restore(list(self._before))
            self._before.clear()
            # Other threads and interpreters have no handlers; any other error is from an earlier handler.
            if type(error) is not ValueError or "main thread" not in str(error):
                raise
        return self

    def __exit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        own_handler = self._handler
        self._holds = None
        try:
            if self._pending:
                self.deliver()
            for number, handler in self._before.items():
                if _getsignal(number) is own_handler:  # otherwise a handler has replaced it
                    _signal(number, handler)
            if self._pending:  # signals that have arrived meanwhile
                self.deliver()
        except BaseException:
            try:
                self.interrupted()
            finally:
                self._restore(list(self._before))
            raise
        finally:
            self._handler = None  # breaks the reference cycle

    def must_wait(self) -> bool:
        """Must a signal that arrives now wait?"""
        return self._holds is None or self._holds()

    def interrupted(self) -> None:
        """Called when a handler has raised an exception at the end."""
        if self.undo is not None:
            self.undo()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.must_wait():
            self._pending.append(number)
        else:
            self._before[number](number, frame)

    def _restore(self, numbers: list[int]) -> None:
        """Restore all handlers, even if one of them raises meanwhile."""
        if numbers:
            try:
                if _getsignal(numbers[0]) is self._handler:
                    _signal(numbers[0], self._before[numbers[0]])
            finally:
                self._restore(numbers[1:])


@contextmanager
def scope(variable: ContextVar[_T], value: _T) -> Generator[_T]:
    """A scope in which a context variable has another value, which it yields.

    Whenever Ctrl-C arrives, the variable is restored, at the latest when the traceback is dropped.

    >>> depth = ContextVar("depth", default=0)
    >>> with scope(depth, 1) as one:
    ...     one, depth.get()
    (1, 1)
    >>> depth.get()
    0
    """
    before = variable.get()
    try:  # before it is set: the handler may run between the two
        variable.set(value)
        yield value
    finally:
        variable.set(before)


def commit(apply: Callable[[], _T], undo: Callable[[], object]) -> _T:
    """`apply()` with signals deferred; `undo()` follows if it fails or is interrupted: all or nothing."""
    with SignalGuard(undo=undo):
        try:
            return apply()
        except BaseException:
            undo()
            raise


class Prepared(Generic[_T]):
    """A change that is fully checked: calling it applies it, all or nothing.

    Args:
        apply: applies it.
        keep: called before `apply`; returns a function that undoes the part that was applied. None if the change
            cannot be undone: then Ctrl-C waits for its end, and an error leaves a part of it applied.
    """

    __slots__ = ("_apply", "_keep", "_undo")

    def __init__(self, apply: Callable[[], _T], keep: Callable[[], Callable[[], object]] | None) -> None:
        self._apply = apply
        self._keep = keep
        self._undo: Callable[[], object] | None = None

    @property
    def can_be_undone(self) -> bool:
        """Can it be undone?"""
        return self._keep is not None

    def __call__(self) -> _T:
        if self._keep is None:
            with SignalGuard():
                return self._apply()
        self._undo = self._keep()
        return commit(self._apply, self._undo)

    def undo(self) -> None:
        """Undo it."""
        if self._undo is not None:
            self._undo()
