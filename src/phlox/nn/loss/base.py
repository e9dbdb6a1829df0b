"""The base class of loss modules."""

from __future__ import annotations

from typing import Any

from phlox.errors import ConfigError
from phlox.module import Module
from phlox.tensor import Tensor, tensor
from phlox.tensor.functional.operands import Reduction

_REDUCTIONS = ("mean", "sum", "none")


class Loss(Module):
    """Base of the losses: each calls a function of `phlox.functional` with stored options.

    `reduction` is "mean", "sum", or "none" for unreduced losses. The docstring of the function says what weight the
    mean has in a training.
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        if reduction not in _REDUCTIONS:
            raise ConfigError(f"{type(self).__name__}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction: Reduction = reduction


def weights(values: tuple[float, ...] | None, like: Tensor[Any, Any, Any]) -> Tensor | None:
    """Weights (hyper-parameters) as a tensor on the device of `like`."""
    return None if values is None else tensor([float(value) for value in values], device=like.device)
