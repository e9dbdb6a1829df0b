"""Gradient clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from phlox.errors import OptimizerError
from phlox.tensor import Tensor


@dataclass(frozen=True)
class GradientClipping:
    """Keeps each parameter's gradient within bounds: make one with `value` or `norm`."""

    kind: Literal["value", "norm"]
    limit: float

    def __post_init__(self) -> None:
        if not self.limit > 0.0:
            raise OptimizerError(f"the limit of gradient clipping must be greater than zero, got {self.limit}")

    @staticmethod
    def value(limit: float) -> GradientClipping:
        """Every element is bound to [-limit, limit]."""
        return GradientClipping("value", limit)

    @staticmethod
    def norm(limit: float) -> GradientClipping:
        """A gradient whose Euclidean norm is greater than `limit` is scaled down to it (Pascanu et al. 2013)."""
        return GradientClipping("norm", limit)

    def __call__(self, grad: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        """The gradient of one parameter, clipped."""
        if self.kind == "value":
            return grad.clip(-self.limit, self.limit)
        norm = grad.square().sum().sqrt()
        return grad * (self.limit / norm.maximum(self.limit))
