"""Side effects and donations of a call of a program: all of them happen, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from phlox.errors import DonatedError
from phlox.host.signal_guard import SignalGuard
from phlox.module.template import donate, restore

if TYPE_CHECKING:
    from phlox.transform.compile.signature import CallArguments


class DonationScope(SignalGuard):
    """A scope from the start of a program until modules and optimizers have their new values.

    Ctrl-C waits while a donated value is lost and its new value is not stored yet: from the moment when the engine
    starts to overwrite donated memory until the end of the scope. An interrupted call does not return its result. If
    something was donated, the step has happened, and the arguments hold the new values; otherwise nothing has changed.
    A step that raises an error changes nothing, unless the engine lost donated values: then using them is an error.
    """

    __slots__ = ("_changes", "_function", "_load", "_reader", "_results", "_waits", "has_released")

    def __init__(self, function: str, reader: CallArguments) -> None:
        super().__init__()
        self._function, self._reader = function, reader
        self.has_released = False
        """Has the engine asked to release the donated arguments?"""
        self._waits = bool(reader.donated)
        self._results: list[tuple[Any, Sequence[Any]]] = []
        self._load: Callable[[], object] | None = None
        self._changes: list[tuple[Callable[[Any], object], Any]] = []

    def __enter__(self) -> Self:
        self._reader.donation = self
        return super().__enter__()

    def __exit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        try:
            if error is not None:
                self._settle(error)
            elif self._pending:
                try:
                    self.deliver()
                except BaseException:
                    self._settle()
                    raise
        finally:
            # While an engine frees arrays, other threads run and signals arrive, so arrays are freed inside the guard.
            self._load = None
            self._changes.clear()
            self._reader.forget()
            super().__exit__()

    def must_wait(self) -> bool:
        return self._waits or self._has_begun()

    def interrupted(self) -> None:
        self._settle()

    def note_tracing(self) -> None:
        """Note that the program is being traced and compiled. This takes long, and signals need not wait for it."""
        self._waits = False
        self.deliver()

    def _has_begun(self) -> bool:
        """Has the engine begun to overwrite donated memory?"""
        backend = self._reader.backend
        return self.has_released or any(
            hasattr(array, "shape") and backend.is_donated(array)
            for leaf in self._reader.donated
            for array in (cast("tuple[Any, ...]", leaf) if isinstance(leaf, tuple) else (leaf,))
        )

    def release(self, *, failed: bool = False) -> None:
        """Drop all references to donated arguments, because some engines cannot tell whether others exist."""
        reader = self._reader
        self.has_released = True
        donated = reader.donated
        new_owner = f"a call of {self._function} that failed" if failed else f"an earlier call of {self._function}"
        for arg in reader.modules:
            if arg.leaves is donated:
                donate(arg.module, f"{new_owner}, as its argument {arg.path}", failed=failed)
        for number, arg in enumerate(reader.optimizers):
            if arg.leaves is donated:
                arg.optimizer.donate_states()
                arg.ready.donate_states()
                reader.optimizers[number] = arg._replace(packed=arg.packed._replace(leaves=()))
        donated.clear()
        reader.first = None

    def returned(self, arrays: Sequence[Any], continued: Sequence[tuple[int, int]], load: Callable[[], object]) -> None:
        """Note that the program has returned. `continued` has module numbers, and the positions of their new arrays.

        `load` stores the new states of optimizers and parameters that were set. Signals wait from now on.
        """
        self._waits = True
        self._results = [(self._reader.modules[number].module, arrays[position]) for number, position in continued]
        self._load = load

    def change(self, apply: Callable[[Any], object], value: Any, before: Any, undo: Any = None) -> None:
        """Call `apply(value)`, a lasting change; `undo(before)` reverts it, by default `apply(before)`."""
        self._changes.append((undo or apply, before))
        apply(value)

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Note that `undo()` reverts a change that was already made."""
        self._changes.append((lambda _: undo(), None))

    def _settle(self, error: BaseException | None = None) -> None:
        """After an error or interrupt: give the new values to the modules of the call, or restore the old ones."""
        changes, self._changes = self._changes, []
        is_done = self._load is None and self._results  # and too late to take it back
        if not is_done and (not self._has_begun() or isinstance(error, DonatedError)):  # by an earlier call
            for undo, before in reversed(changes):
                undo(before)
        elif self._load is not None or is_done:
            if self._load is not None:
                self._load()
            for module, arrays in self._results:
                restore(module, arrays)
        elif not self.has_released:
            self.release(failed=True)
