"""The weights of the means that losses compute, noted inside `noting_means`.

If a step of a training returns such a mean, its weight is known, and users need not give it.
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
    """The means that losses have computed in a scope of `noting_means`."""

    def __init__(self) -> None:
        self._noted: list[tuple[Any, Callable[[], Loss]]] = []
        self.weighted = False
        """Does one of the means leave out items, or weigh them unequally? Otherwise all items have the same weight."""

    def note(self, mean: Any, loss: Callable[[], Loss], *, weighted: bool) -> None:
        """Note a mean, and the function that gives its sums."""
        self._noted.append((mean, loss))
        self.weighted |= weighted

    def follow(self, mean: Any, rounded: Any) -> None:
        """Note that a mean has been rounded to another tensor."""
        self._noted += [(rounded, loss) for noted, loss in self._noted if noted is mean]

    def loss_of(self, value: Any) -> Loss | None:
        """The sums of a mean that was noted, at full precision; None for other values, such as a sum of means.

        Call it within the trace in which the mean was computed.
        """
        return next((loss() for noted, loss in self._noted if noted is value), None)


_means: ContextVar[Means | None] = ContextVar("phlox_means", default=None)

means: Callable[[], Means | None] = _means.get
"""The object that notes the means of losses; None outside `noting_means`."""


@contextmanager
def noting_means() -> Generator[Means]:
    """Within this scope (and thread or task), note the weights of the means of losses.

    It works inside and outside of compiled functions.

    >>> import phlox as px
    >>> from phlox import nn
    >>> logits, targets = px.zeros((4, 2)), px.tensor([0, 1, -100, -100])
    >>> with noting_means() as noted:
    ...     mean = nn.cross_entropy_loss(logits, targets, ignore_index=-100)
    >>> noted.weighted, noted.loss_of(mean).weight.item(), noted.loss_of(mean * 0.5)
    (True, 2.0, None)
    """
    with scope(_means, Means()) as noted:
        assert noted is not None
        yield noted
