"""Gradient clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from phlox.errors import OptimizerError
from phlox.module import GradientsParams
from phlox.module.gradients import norm_of
from phlox.tensor import Tensor, full_like


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
            return grads.map(lambda grad: _scaled(grad, self._root_factor(norm_of([grad]))))
        root = self._root_factor(grads.norm())
        return grads.map(lambda grad: _scaled(grad, root))

    def _root_factor(self, norm: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        """What to multiply by twice: at once, the factor of a large norm may be so small that XLA takes it for zero."""
        return full_like(norm, self.limit).sqrt() / norm.maximum(self.limit).sqrt()


def _scaled(grad: Tensor[Any, Any, Any], root: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    wide = grad.to_full_precision()
    root = root if root.device == wide.device else root.to_device(wide.device)
    return wide * root * root
