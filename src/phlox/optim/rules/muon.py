"""Muon: momentum made orthogonal, for matrices."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

from phlox.errors import ConfigError
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.adam import AdamWConfig
from phlox.optim.rules.update_terms import average, decayed, norm
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.tensor import zeros_like


class MuonConfig(SimpleConfig):
    """Hyper-parameters of `Muon`; weight decay is decoupled. Defaults are PyTorch's.

    Args:
        momentum: mu in the formula.
        nesterov: whether the step uses Nesterov's momentum.
        coefficients: a, b and c of the polynomial that is iterated.
        iterations: the number of iterations.
        epsilon: the lower bound of the norm that a matrix is divided by.
        scale: the factor of the step of a matrix [inputs, outputs]. "original" is sqrt(max(1, outputs / inputs)).
            "match_rms_adamw" is 0.2 sqrt(max(inputs, outputs)): learning rate and decay can then be as for AdamW (Liu
            et al. 2025: "Muon is scalable for LLM training").
        fallback: the optimizer of parameters that are not matrices: biases, norms, kernels of convolutions.
        fallback_lr: a factor of the learning rate for the fallback.

    >>> MuonConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Muon, 0 states)
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


class Muon(Rule[MuonConfig]):
    """m = mu m + (1 - mu) g;  x = x - lr s orthogonal(mu m + (1 - mu) g) - lr decay x, for matrices x.

    `orthogonal` moves the singular values near 1 with the Newton-Schulz iteration X = a X + (b A + c A^2) X, A = X X^T,
    at the precision of the backend (PyTorch always uses bfloat16). Without `nesterov` it is applied to m. s is the
    `scale`. Jordan et al. 2024: "Muon: an optimizer for hidden layers in neural networks".

    A matrix is a parameter with two axes, inputs and outputs as in `phlox.nn.Linear`. The fallback updates all other
    parameters. Embeddings and the last layer are matrices too, but another optimizer is better for them: use a `Group`.
    """

    def __init__(self, config: MuonConfig) -> None:
        self.config = config
        self.fallback = _simple(config.fallback)

    def init(self, tensor: AnyTensor) -> State:
        if tensor.ndim != 2:
            return {"moment": None, "fallback": self.fallback.init(tensor)}
        return {"moment": zeros_like(tensor), "fallback": None}

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
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

    def averaged(self, tensor: AnyTensor, state: State) -> AnyTensor:
        """See `SimpleOptimizer.averaged`; matrices have no average."""
        return tensor if state["fallback"] is None else self.fallback.averaged(tensor, state["fallback"])


def orthogonal(x: AnyTensor, config: MuonConfig) -> AnyTensor:
    """The matrix with its singular values moved near 1, by the Newton-Schulz iteration; zeros stay zero."""
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
