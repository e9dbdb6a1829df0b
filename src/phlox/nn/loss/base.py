"""What losses as modules have in common."""

from __future__ import annotations

from typing import Any

from phlox.errors import ConfigError
from phlox.module import Module
from phlox.tensor import Tensor, tensor
from phlox.tensor.functional.operands import Reduction

_REDUCTIONS = ("mean", "sum", "none")


class Loss(Module):
    """Base of the losses: each is a function of `phlox.functional` with its options.

    `reduction` says what becomes of the losses one by one: "mean", "sum", or "none" to keep them.
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        if reduction not in _REDUCTIONS:
            raise ConfigError(f"{type(self).__name__}: reduction is 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction: Reduction = reduction


def weights(values: tuple[float, ...] | None, like: Tensor[Any, Any, Any]) -> Tensor | None:
    """Weights, which are hyper-parameters, as a tensor beside another one."""
    return None if values is None else tensor([float(value) for value in values], device=like.device)
