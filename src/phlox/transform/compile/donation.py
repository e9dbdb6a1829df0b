"""What a call of a program changes besides its result, and what it donates: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from phlox.errors import DonatedError
from phlox.host.signal_guard import SignalGuard
from phlox.module.template import donate, restore

if TYPE_CHECKING:
    from phlox.transform.compile.signature import CallArguments


class DonationScope(SignalGuard):
    """A scope from the moment at which a program is started until modules and optimizers have what follows.

    Ctrl-C waits while a donated value is lost and its successor is nowhere yet: as soon as the engine has begun to
    write over what is donated, and from the return of the arrays on. What is interrupted then does not get its result.
    If something was donated the step has happened, and the modules that were given hold what it has made of them;
    otherwise it has not, and everything is as it was. A step that fails has not happened either, unless the engine has
    lost what was donated: then that is said where it is used.
    """

    __slots__ = ("_changes", "_function", "_load", "_reader", "_results", "_waits", "has_released")

    def __init__(self, function: str, reader: CallArguments) -> None:
        super().__init__()
        self._function, self._reader = function, reader
        self.has_released = False
        """Has the engine asked for that?"""
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
            elif self._came:
                try:
                    self.deliver()
                except BaseException:
                    self._settle()
                    raise
        finally:
            # While an engine frees arrays other threads run, and signals come: so it is done before the end.
            self._load = None
            self._changes.clear()
            self._reader.forget()
            super().__exit__()

    def must_wait(self) -> bool:
        return self._waits or self._has_begun()

    def interrupted(self) -> None:
        self._settle()

    def records(self) -> None:
        """The program is traced and compiled before it is run, which takes long: so long signals need not wait."""
        self._waits = False
        self.deliver()

    def _has_begun(self) -> bool:
        """Has the engine begun to write over what is donated?"""
        backend = self._reader.backend
        return self.has_released or any(
            hasattr(array, "shape") and backend.is_donated(array)
            for leaf in self._reader.donated
            for array in (cast("tuple[Any, ...]", leaf) if isinstance(leaf, tuple) else (leaf,))
        )

    def release(self, *, failed: bool = False) -> None:
        """Drop all that is held of a call's donated arguments: some engines cannot tell who else holds an array."""
        reader = self._reader
        self.has_released = True
        donated = reader.donated
        taker = f"a call of {self._function} that failed" if failed else f"an earlier call of {self._function}"
        for given in reader.modules:
            if given.leaves is donated:
                donate(given.module, f"{taker}, as its argument {given.path}", failed=failed)
        for number, argument in enumerate(reader.optimizers):
            if argument.leaves is donated:
                argument.optimizer.donate_states()
                argument.ready.donate_states()
                reader.optimizers[number] = argument._replace(packed=argument.packed._replace(leaves=()))
        donated.clear()
        reader.first = None

    def arrived(self, arrays: Sequence[Any], continued: Sequence[tuple[int, int]], load: Callable[[], object]) -> None:
        """The program has returned: for some modules, by number, the place of the arrays that they go on with.

        `load` gives optimizers, and parameters that were set, what is theirs. Signals wait from now on.
        """
        self._waits = True
        self._results = [(self._reader.modules[number].module, arrays[place]) for number, place in continued]
        self._load = load

    def change(self, apply: Callable[[Any], object], value: Any, before: Any, undo: Any = None) -> None:
        """`apply(value)`, which outlives the call; `undo(before)`, or the same function of that, takes it back."""
        self._changes.append((undo or apply, before))
        apply(value)

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Take back by `undo()` what has been done already."""
        self._changes.append((lambda _: undo(), None))

    def _settle(self, error: BaseException | None = None) -> None:
        """The caller does not get its result: what was given holds it, or is as it was."""
        changes, self._changes = self._changes, []
        done = self._load is None and self._results  # and too late to take it back
        if not done and (not self._has_begun() or isinstance(error, DonatedError)):  # by an earlier call
            for undo, before in reversed(changes):
                undo(before)
        elif self._load is not None or done:
            if self._load is not None:
                self._load()
            for module, arrays in self._results:
                restore(module, arrays)
        elif not self.has_released:
            self.release(failed=True)
