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
    """Clips gradients in an optimizer's step: create one with `value`, `norm` or `global_norm`.

    Scaled gradients are at f32 or higher: at half precision, elements much smaller than the norm would vanish.

    >>> from phlox import optim
    >>> optimizer = optim.AdamWConfig().init(grad_clipping=optim.GradientClipping.global_norm(1.0))
    """

    kind: Literal["value", "norm", "global norm"]
    limit: float

    def __post_init__(self) -> None:
        if not self.limit > 0.0:
            raise OptimizerError(f"the limit of gradient clipping must be greater than zero, got {self.limit}")

    @staticmethod
    def value(limit: float) -> GradientClipping:
        """Clip every element to [-limit, limit]."""
        return GradientClipping("value", limit)

    @staticmethod
    def norm(limit: float) -> GradientClipping:
        """Scale down each gradient whose Euclidean norm is greater than `limit` to that norm (Pascanu et al. 2013)."""
        return GradientClipping("norm", limit)

    @staticmethod
    def global_norm(limit: float) -> GradientClipping:
        """Scale all gradients by one factor so that their common norm, `GradientsParams.norm`, is at most `limit`."""
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
        """The root of the factor, to be applied twice: XLA might flush a very small factor to zero."""
        return full_like(norm, self.limit).sqrt() / norm.maximum(self.limit).sqrt()


def _scaled(grad: Tensor[Any, Any, Any], root: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    wide = grad.to_full_precision()
    root = root if root.device == wide.device else root.to_device(wide.device)
    return wide * root * root
