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
        self._noted: dict[int, tuple[Any, Any, Callable[[], Loss]]] = {}
        """By the identity of a mean: the mean, its weight, and the function that gives its sums."""
        self.weighted = False
        """Has one of them left out items, or weighed them unequally? Otherwise each weighs as its rows do."""

    def note(self, mean: Any, weight: Any, loss: Callable[[], Loss], *, weighted: bool) -> None:
        """Note a mean, its weight, and the function that gives its sums."""
        self._noted[id(mean)] = mean, weight, loss
        self.weighted |= weighted

    def follow(self, mean: Any, rounded: Any) -> None:
        """Note that a mean has been rounded to another tensor."""
        if (noted := self._noted.get(id(mean))) is not None:
            self._noted[id(rounded)] = rounded, *noted[1:]

    def of(self, value: Any) -> tuple[Any, Callable[[], Loss] | None]:
        """The weight of a mean that was noted, and the function that gives its sums, at full precision.

        Both are None for anything else, such as of several means. Call the function within the trace that the mean was
        taken in.
        """
        return self._noted.get(id(value), (value, None, None))[1:]


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
    >>> found.weighted, found.of(mean)[0].item(), found.of(mean * 0.5)
    (True, 2.0, (None, None))
    """
    with scope(_means, Means()) as found:
        assert found is not None
        yield found
