"""In Phlox."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import phlox as px
from benchmarks.models.mlp import Sizes
from phlox import nn
from phlox.record import Record


class Mlp(px.Module):
    """Linear layers."""

    def __init__(self, widths: tuple[int, ...], device: px.Device) -> None:
        self.layers = [nn.Linear(a, b, device=device) for a, b in pairwise(widths)]

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)

    def loss(self, x: px.Tensor, y: Any) -> px.Tensor:
        return nn.cross_entropy_loss(self(x), y)


def model(sizes: Sizes, weights: dict[str, Any], device: px.Device) -> Mlp:
    """The model with these weights."""
    found = Mlp(sizes.widths, device)
    found.load_record(Record({f"layers.{name}": array for name, array in weights.items()}))
    return found
