"""Layers that pass their input on: as it is, or in another shape."""

from __future__ import annotations

from typing import Any

from phlox.config import config_of
from phlox.module import Module
from phlox.tensor import Tensor


class Identity(Module):
    """Gives what it is given: in the place of a layer that is not wanted.

    >>> Identity()("anything")
    'anything'
    """

    def __init__(self) -> None:
        """It takes nothing."""

    def __call__(self, x: Any) -> Any:
        return x


class Flatten(Module):
    """The axes from `start` to `end` made one; by default all but the first.

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
