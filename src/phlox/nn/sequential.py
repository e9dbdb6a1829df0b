"""Layers one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from phlox.module import Module


class Sequential(Module):
    """Calls its layers in order; any callable is a layer.

    >>> import phlox as px
    >>> from phlox import nn
    >>> nn.Sequential([nn.Linear(4, 8), nn.Relu(), nn.Linear(8, 1)])(px.ones((2, 4))).shape
    (2, 1)
    """

    def __init__(self, layers: Sequence[Callable[..., Any]]) -> None:
        self.layers: list[Any] = list(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __getitem__(self, place: int) -> Any:
        return self.layers[place]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)
