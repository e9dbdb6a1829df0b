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
        self._noted: dict[int, tuple[Any, Any, Callable[[], Loss]]] = {}
        """By the identity of a mean: the mean, its weight, and the function that gives its sums."""
        self.weighted = False
        """Does one of the means leave out items, or weigh them unequally? Otherwise all items have the same weight."""

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

        Both are None for other values, such as a sum of means. Call the function within the trace in which the mean
        was computed.
        """
        return self._noted.get(id(value), (value, None, None))[1:]


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
    >>> noted.weighted, noted.of(mean)[0].item(), noted.of(mean * 0.5)
    (True, 2.0, (None, None))
    """
    with scope(_means, Means()) as noted:
        assert noted is not None
        yield noted
