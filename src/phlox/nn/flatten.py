"""Layers that return their input, unchanged or reshaped."""

from __future__ import annotations

from typing import Any

from phlox.config import config_of
from phlox.module import Module
from phlox.tensor import Tensor

__all__ = ["Flatten", "FlattenConfig", "Identity"]


class Identity(Module):
    """Returns its input unchanged; use it as a placeholder for a layer.

    >>> Identity()("anything")
    'anything'
    """

    def __init__(self) -> None:
        """No options."""

    def __call__(self, x: Any) -> Any:
        return x


class Flatten(Module):
    """Merge the axes from `start` to `end` (inclusive) to one; by default all but the first.

    >>> import phlox as px
    >>> Flatten()(px.ones((2, 3, 4, 5))).shape, Flatten(0, 1)(px.ones((2, 3, 4, 5))).shape
    ((2, 60), (6, 4, 5))
    """

    def __init__(self, start: int = 1, end: int = -1) -> None:
        self.start, self.end = start, end

    def __call__(self, x: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        return Tensor.flatten(x, self.start, self.end)


class FlattenConfig(config_of(Flatten)):
    """Hyper-parameters of `Flatten`."""
