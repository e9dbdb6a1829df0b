"""Composites of neural networks: the backend itself holds the forward and backward of each; see `contract.nn`."""

from __future__ import annotations

from phlox.autodiff.build import General, Rule


def _composite(name: str, operands: int) -> Rule:
    forward, backward = f"{name}_forward", f"{name}_backward"
    return General(
        operands,
        lambda B, *arguments: getattr(B, forward)(*arguments),
        lambda B, saved, g, needed, *options: getattr(B, backward)(saved, g, needed, *options),
    )


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
