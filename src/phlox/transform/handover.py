"""What a call gives away to a program that writes over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phlox.module.template import give_away, take_back
from phlox.optim.interrupt import Uninterrupted

if TYPE_CHECKING:
    from phlox.transform.reading import Reader


class Handover:
    """From the moment at which modules and optimizers let go of what is donated until they have what follows.

    Ctrl-C waits that long: between two kernels, half of the values would be old ones.
    """

    __slots__ = ("_after", "_modules", "_scope")

    def __init__(self) -> None:
        self._modules: list[Any] = []
        self._after: list[tuple[Any, Sequence[Any]]] = []
        self._scope = Uninterrupted()
        self._scope.__enter__()

    def let_go(self, function: str, reader: Reader) -> None:
        """Drop all that is held of what a call donates."""
        self._modules = [given.module for given in reader.modules]
        donated = reader.donated
        for given in reader.modules:
            if given.leaves is donated:
                give_away(given.module, f"an earlier call of {function}, as its argument {given.path}")
        for number, going in enumerate(reader.optimizers):
            if going.leaves is donated:
                going.optimizer.give_away()
                going.ready.give_away()
                reader.optimizers[number] = going._replace(packed=going.packed._replace(leaves=()))
        donated.clear()
        reader.first = None

    def done(self, arrays: Sequence[Any], continued: Sequence[tuple[int, int]]) -> None:
        """The run is over: for some modules, by number, the place of the arrays that they go on with."""
        self._after = [(self._modules[number], arrays[place]) for number, place in continued]

    def end(self) -> None:
        """What is interrupted now does not get its result: so modules that were donated hold what follows them."""
        try:
            self._scope.__exit__()
        except BaseException:
            for module, arrays in self._after:
                take_back(module, arrays)
            raise
