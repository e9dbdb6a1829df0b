# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""In PyTorch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.models.mlp import Sizes


def model(sizes: Sizes, weights: dict[str, Any]) -> nn.Module:
    """The model with these weights."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes.widths)):
        linear = nn.Linear(a, b)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights[f"{i}.weight"].T))
            linear.bias.copy_(torch.from_numpy(weights[f"{i}.bias"]))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
