"""Composites of neural networks: the backend has a forward and a backward function for each; see `contract.nn`."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, MultiOutputRule, Result, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed


def _composite(name: str, operands: int) -> Rule:
    def forward(B: Backend, *arguments: Any) -> Result:
        return getattr(B, f"{name}_forward")(*arguments)

    def backward(B: Backend, saved: Any, g: Array, needed: Needed, *options: Any) -> Gradients:
        return getattr(B, f"{name}_backward")(saved, g, needed, *options)

    return (MultiOutputRule if name in _SEVERAL else General)(operands, forward, backward)


_OPERANDS = {
    "linear": 3,
    "softmax": 1,
    "log_softmax": 1,
    "cross_entropy": 3,
    "ctc_loss": 4,
    "gelu": 1,
    "glu": 1,
    "layer_norm": 3,
    "rms_norm": 2,
    "group_norm": 3,
    "batch_norm_train": 3,
    "attention": 6,
    "lstm": 7,
    "gru": 7,
    "rnn": 6,
    "interpolate": 1,
    "grid_sample": 2,
    "conv": 3,
    "max_pool": 1,
    "avg_pool": 1,
}

_SEVERAL = frozenset({"batch_norm_train", "lstm", "gru", "rnn"})
"""Composites with several results; their backward functions get one gradient per result."""

NN: dict[str, Rule] = {name: _composite(name, operands) for name, operands in _OPERANDS.items()}
