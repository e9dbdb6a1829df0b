"""Gradient clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from phlox.errors import OptimizerError
from phlox.module import GradientsParams
from phlox.module.gradients import norm_of
from phlox.tensor import Tensor


@dataclass(frozen=True)
class GradientClipping:
    """Keeps gradients within bounds: make one with `value`, `norm` or `global_norm`.

    Scaled gradients are at no less than full precision: elements that are small beside the norm would vanish at half.
    """

    kind: Literal["value", "norm", "global norm"]
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

    @staticmethod
    def global_norm(limit: float) -> GradientClipping:
        """All gradients are scaled alike so that their norm together, `GradientsParams.norm`, is at most `limit`."""
        return GradientClipping("global norm", limit)

    def of_all(self, grads: GradientsParams) -> GradientsParams:
        """The gradients, clipped."""
        if self.kind == "value":
            return grads.map(lambda grad: grad.clip(-self.limit, self.limit))
        if self.kind == "norm":
            return grads.map(lambda grad: _scaled(grad, self._factor(norm_of([grad]))))
        factor = self._factor(grads.norm())
        return grads.map(lambda grad: _scaled(grad, factor))

    def _factor(self, norm: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        return self.limit / norm.maximum(self.limit)


def _scaled(grad: Tensor[Any, Any, Any], factor: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    wide = grad.to_full_precision()
    return wide * (factor if factor.device == wide.device else factor.to_device(wide.device))
