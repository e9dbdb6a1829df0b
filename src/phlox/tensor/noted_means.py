"""What the means that losses take weigh, noted while somebody asks.

A step that returns such a mean has then said its weight, and users need not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from phlox.host.signal_guard import scope

if TYPE_CHECKING:
    from phlox.tensor.functional.loss_weight import Loss


class Means:
    """The means that losses have taken in a scope of `noting_means`."""

    def __init__(self) -> None:
        self._noted: list[tuple[Any, Callable[[], Loss], float | None]] = []
        self.weighted = False
        """Has one of them left out items, or weighed them unequally? Otherwise each weighs as its rows do."""

    def note(self, mean: Any, loss: Callable[[], Loss], weight: float | None = None) -> None:
        """Note a mean, the function that gives its sums, and its weight if no item is left out and all weigh 1."""
        self._noted.append((mean, loss, weight))
        self.weighted |= weight is None

    def follow(self, mean: Any, rounded: Any) -> None:
        """Note that a mean has been rounded to another tensor."""
        self._noted += [(rounded, loss, weight) for one, loss, weight in self._noted if one is mean]

    def loss_of(self, value: Any) -> Loss | None:
        """The sums of a mean that was noted, at full precision; None for anything else, such as of several means.

        Ask within the trace that the mean was taken in.
        """
        return next((loss() for one, loss, _ in self._noted if one is value), None)

    def weight_of(self, value: Any) -> float | None:
        """The weight of a mean that was noted, if all its items weigh 1: it is known without the sums."""
        for one, _, weight in self._noted:
            if one is value:
                return weight
        return None


_means: ContextVar[Means | None] = ContextVar("phlox_means", default=None)

means: Callable[[], Means | None] = _means.get
"""What notes the means of losses; None if nobody asks."""


@contextmanager
def noting_means() -> Generator[Means]:
    """Within this scope (and thread or task), note what the means of losses weigh.

    It works in a compiled function as outside of it.

    >>> import phlox as px
    >>> from phlox import nn
    >>> logits, targets = px.zeros((4, 2)), px.tensor([0, 1, -100, -100])
    >>> with noting_means() as found:
    ...     mean = nn.cross_entropy_loss(logits, targets, ignore_index=-100)
    >>> found.weighted, found.loss_of(mean).weight.item(), found.loss_of(mean * 0.5)
    (True, 2.0, None)
    """
    with scope(_means, Means()) as found:
        assert found is not None
        yield found
