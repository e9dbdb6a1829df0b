"""Metrics of a batch, and their mean over many batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from phlox.backend import Int
from phlox.errors import ShapeError
from phlox.tensor import Tensor

Measure: TypeAlias = Callable[..., Tensor[Any, Any, Any]]
"""`(output of the model, *targets)` to a scalar Float tensor: a loss or a metric, as the mean over the rows."""


def accuracy(logits: Tensor, labels: Tensor[Any, Any, Int]) -> Tensor:
    """The fraction of rows of `logits` [..., classes] whose largest entry is at the label [...].

    >>> import phlox as px
    >>> accuracy(px.tensor([[0.1, 0.9], [0.8, 0.2]]), px.tensor([1, 1])).item()
    0.5
    """
    if labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"accuracy: labels of shape {labels.shape} do not fit logits of shape {logits.shape}; give one label for "
            f"each row, of shape {logits.shape[:-1]}"
        )
    return (logits.argmax(axis=-1) == labels).float().mean()


class Mean:
    """The weighted mean of values that are added one after the other.

    Tensors are read only when the mean is requested, so adding one never waits for an asynchronous engine.

    >>> mean = Mean()
    >>> mean.add(1.0, weight=3)
    >>> mean.add(5.0)
    >>> mean.value()
    2.0
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._weight = 0.0
        self._unread: list[tuple[Any, float]] = []

    def add(self, value: Tensor[Any, Any, Any] | float, weight: float = 1.0) -> None:
        """Add `value`, a number or a scalar tensor, with this weight."""
        self._unread.append((value, weight))

    def value(self) -> float:
        """The mean so far; NaN if nothing was added."""
        for value, weight in self._unread:
            self._total += float(value) * weight
            self._weight += weight
        self._unread.clear()
        return self._total / self._weight if self._weight else float("nan")
