"""Composites of neural networks: the backend itself holds the forward and backward of each; see `contract.nn`."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Gradients, Needed, Result, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array


def _composite(name: str, operands: int) -> Rule:
    def forward(B: Backend, *arguments: Any) -> Result:
        return getattr(B, f"{name}_forward")(*arguments)

    def backward(B: Backend, saved: Any, g: Array, needed: Needed, *options: Any) -> Gradients:
        return getattr(B, f"{name}_backward")(saved, g, needed, *options)

    return General(operands, forward, backward)


_OPERANDS = {
    "linear": 3,
    "softmax": 1,
    "log_softmax": 1,
    "cross_entropy": 2,
    "gelu": 1,
    "layer_norm": 3,
    "conv2d": 3,
    "max_pool2d": 1,
    "avg_pool2d": 1,
}

NN: dict[str, Rule] = {name: _composite(name, operands) for name, operands in _OPERANDS.items()}
