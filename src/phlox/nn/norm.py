"""Layer normalisation."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.module import Module, Param
from phlox.nn.initializer import Ones, Zeros
from phlox.tensor import Tensor, functional


class LayerNorm(Module):
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over the last axis, of size d_model (Ba, Kiros, Hinton 2016)."""

    def __init__(self, d_model: int, *, epsilon: float = 1e-5, device: DeviceLike | None = None) -> None:
        self.gamma = Param.deferred((d_model,), Ones(), device=device)
        self.beta = Param.deferred((d_model,), Zeros(), device=device)
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.gamma.val(), self.beta.val(), epsilon=self.epsilon)


class LayerNormConfig(config_of(LayerNorm)):
    """Hyper-parameters of `LayerNorm`."""
