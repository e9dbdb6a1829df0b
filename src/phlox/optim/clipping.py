"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from phlox.backend.parallel import same_everywhere
from phlox.errors import OptimizerError
from phlox.module import GradientsParams
from phlox.module.gradients import norm_of
from phlox.optim.simple import AnyTensor
from phlox.tensor import full_like


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
        object.__setattr__(self, "limit", float(self.limit))  # a NumPy scalar would widen the gradients

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
        """Scale all gradients by one factor so that their common norm, `GradientsParams.norm`, is at most `limit`.

        For several models with their own optimizers, see `of_all_together`.
        """
        return GradientClipping("global norm", limit)

    def of_all(self, grads: GradientsParams) -> GradientsParams:
        """The gradients, clipped."""
        return self.of_all_together({"": grads})[""]

    def of_all_together(self, grads: Mapping[str, GradientsParams]) -> dict[str, GradientsParams]:
        """The gradients of several models by name, clipped; for `global_norm`, by one norm of all of them.

        The norm is computed on the device of the first gradient.

        >>> import phlox as px
        >>> from phlox import optim
        >>> grads = {name: optim.GradientsParams({name: px.tensor([g])}) for name, g in (("a", 3.0), ("b", 4.0))}
        >>> clipped = optim.GradientClipping.global_norm(1.0).of_all_together(grads)
        >>> [round(clipped[name].norm().item(), 4) for name in grads]
        [0.6, 0.8]
        """
        with same_everywhere(next((model_grads.backend for model_grads in grads.values()), None)):
            return self._clipped(grads)

    def _clipped(self, grads: Mapping[str, GradientsParams]) -> dict[str, GradientsParams]:
        if self.kind == "global norm":
            root = self._root_factor(norm_of([grad for model in grads.values() for _, grad in model.items()]))
            return {name: model.map(lambda grad: _scaled(grad, root)) for name, model in grads.items()}
        return {name: model.map(self._clip_one) for name, model in grads.items()}

    def _clip_one(self, grad: AnyTensor) -> AnyTensor:
        if self.kind == "value":
            return grad.clip(-self.limit, self.limit)
        return _scaled(grad, self._root_factor(norm_of([grad])))

    def _root_factor(self, norm: AnyTensor) -> AnyTensor:
        """The root of the factor, to be applied twice: XLA might flush a very small factor to zero."""
        return full_like(norm, self.limit).sqrt() / norm.maximum(self.limit).sqrt()


def _scaled(grad: AnyTensor, root: AnyTensor) -> AnyTensor:
    wide = grad.to_full_precision()
    root = root if root.device == wide.device else root.to_device(wide.device)
    return wide * root * root
