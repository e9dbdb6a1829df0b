"""Muon: momentum made orthogonal, for matrices."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal

from phlox.errors import ConfigError
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.adam import AdamWConfig
from phlox.optim.rules.update_terms import average, decayed, norm
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.tensor import Tensor, zeros_like


class MuonConfig(SimpleConfig):
    """Hyper-parameters of `Muon`; decay acts on the weights alone. Defaults are PyTorch's.

    Args:
        coefficients: those of the polynomial that is iterated.
        iterations: how often.
        epsilon: the least norm that a matrix is divided by.
        scale: the factor of the step of a matrix [inputs, outputs]: "original" is sqrt(max(1, outputs / inputs));
            "match_rms_adamw" is 0.2 sqrt(max(inputs, outputs)), with which learning rate and decay can be those of
            AdamW (Liu et al. 2025: "Muon is scalable for LLM training").
        fallback: the optimizer of parameters that are no matrices: biases, norms, kernels of convolutions.
        fallback_lr: the learning rate of the fallback, as a factor of the optimizer's.
    """

    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    iterations: int = 5
    epsilon: float = 1e-7
    scale: Literal["original", "match_rms_adamw"] = "original"
    maximize: bool = False
    fallback: SimpleConfig = AdamWConfig()
    fallback_lr: float = 1.0

    def validate(self) -> None:
        super().validate()
        if self.momentum >= 1.0:
            raise ConfigError(f"momentum must lie in [0, 1), got {self.momentum}")
        if self.iterations < 1:
            raise ConfigError(f"iterations must be at least one, got {self.iterations}")

    def simple(self) -> SimpleOptimizer:
        return Muon(self)


class Muon(SimpleOptimizer):
    """m = mu m + (1 - mu) g;  x = x - lr s orthogonal(mu m + (1 - mu) g) - lr decay x, for matrices x.

    Jordan et al. 2024: "Muon: an optimizer for hidden layers in neural networks". `orthogonal` brings the singular
    values near 1 by the iteration X = a X + (b A + c A^2) X, A = X X^T, of Newton and Schulz, at the precision of the
    backend (PyTorch always takes bfloat16); without `nesterov` it is that of m. s is the `scale`. A matrix is what has
    two axes, which are inputs and outputs as in `phlox.nn.Linear`; everything else is left to the fallback. Embeddings
    and the last layer, which are matrices too, are better left to another optimizer.
    """

    shares_counts = True

    def __init__(self, config: MuonConfig) -> None:
        self.config = config
        self.fallback = _simple(config.fallback)

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        if tensor.ndim != 2:
            return {"moment": None, "fallback": self.fallback.init(tensor)}
        return {"moment": zeros_like(tensor), "fallback": None}

    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        c = self.config
        grad = -grad if c.maximize else grad
        if tensor.ndim != 2:
            tensor, after = self.fallback.step(lr * c.fallback_lr, tensor, grad, state["fallback"])
            return tensor, {"moment": None, "fallback": after}
        m = average(state["moment"], grad, c.momentum)
        direction = orthogonal(average(m, grad, c.momentum) if c.nesterov else m, c)
        inputs, outputs = tensor.shape
        square = max(1.0, outputs / max(inputs, 1)) if c.scale == "original" else 0.04 * max(inputs, outputs)
        tensor = decayed(tensor, lr, c.weight_decay) - direction * (lr * math.sqrt(square))
        return tensor, {"moment": m, "fallback": None}

    def averaged(self, tensor: Tensor[Any, Any, Any], state: State) -> Tensor[Any, Any, Any]:
        """See `SimpleOptimizer.averaged`; matrices are as they are."""
        return tensor if state["fallback"] is None else self.fallback.averaged(tensor, state["fallback"])


def orthogonal(x: Tensor[Any, Any, Any], config: MuonConfig) -> Tensor[Any, Any, Any]:
    """The matrix with singular values near 1, by the iteration of Newton and Schulz; zeros stay."""
    a, b, c = config.coefficients
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x
    x = x / norm(x).maximum(config.epsilon)
    for _ in range(config.iterations):
        square = x @ x.mT
        x = x * a + (square * b + square @ square * c) @ x
    return x.mT if tall else x


@cache
def _simple(config: SimpleConfig) -> SimpleOptimizer:
    """One for all Muons of a config, so that a compiled function takes them for equal."""
    return config.simple()
