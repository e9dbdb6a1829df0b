"""Spectral normalization."""

from __future__ import annotations

import math
from typing import Any

from phlox import random
from phlox.errors import ConfigError
from phlox.module import Param
from phlox.module.reparameterization import Reparameterization, Site
from phlox.tensor import Tensor, maximum


class SpectralNorm(Reparameterization):
    """weight = base / s, where s is the largest singular value of base as a matrix (Miyato et al. 2018).

    s is estimated by power iteration: two vectors, which are not trained and are saved. Each use in training improves
    them by `iterations`; a compiled training step returns the model, as with batch norm.

    Args:
        param: the parameter.
        axis: the axis that is the rows of the matrix; all others are its columns. By default that of the outputs.
        iterations: how many in each use, at least 1.
        epsilon: the least length of a vector that it is divided by.

    >>> import phlox as px
    >>> layer = px.reparameterize(px.nn.Linear(4, 3).init(0), "weight", SpectralNorm)
    >>> round(px.linalg.matrix_norm(layer.weight.val(), ord=2).item(), 2)
    1.0
    """

    def __init__(self, param: Any, *, axis: int = 1, iterations: int = 1, epsilon: float = 1e-12) -> None:
        if iterations < 1:
            raise ConfigError(f"SpectralNorm: iterations must be at least 1, got {iterations}")
        self.base = param
        self.axis, self.iterations, self.epsilon = axis, iterations, epsilon
        matrix = self._matrix(param.val().detach())
        u, v = (random.normal((size,), device=matrix.device) for size in matrix.shape)
        u, v = self._iterate(matrix, u, v, 15)  # as many as PyTorch
        self.u, self.v = Param(u, trained=False), Param(v, trained=False)

    @classmethod
    def at(cls, site: Site, **options: Any) -> SpectralNorm:
        """See `Reparameterization.at`."""
        options.setdefault("axis", site.output_axis)
        return cls(site.param, **options)

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        base = self.base.val()
        matrix = self._matrix(base)
        if self.is_training(base):
            u, v = self._iterate(matrix.detach(), self.u.val(), self.v.val(), self.iterations)
            self.u.set(u)
            self.v.set(v)
        return base / (self.u.val().detach() * (matrix @ self.v.val().detach())).sum()

    def _matrix(self, weight: Tensor) -> Tensor:
        axes = (self.axis, *(n for n in range(weight.ndim) if n != self.axis))
        rows = weight.shape[self.axis]
        return weight.permute_dims(axes).reshape(rows, math.prod(weight.shape) // max(rows, 1))

    def _iterate(self, matrix: Tensor, u: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
        for _ in range(times):
            u = self._unit(matrix @ v)  # in this order, as PyTorch
            v = self._unit(u @ matrix)
        return u, v

    def _unit(self, x: Tensor) -> Tensor:
        return x / maximum((x * x).sum().sqrt(), self.epsilon)
