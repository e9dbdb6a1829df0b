"""Mixtures of experts on NumPy: one product for each expert that has rows; the weights of others are not read."""

from __future__ import annotations

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.experts import rows_by_expert
from phlox.backend.contract.types import Array


class Experts(Backend):
    """See `phlox.backend.contract.nn.experts`."""

    def expert_linear(self, x: Array, weight: Array, experts: Array) -> Array:
        y = np.empty((len(x), weight.shape[2]), x.dtype)
        for expert, rows in rows_by_expert(experts, len(weight)):
            y[rows] = x[rows] @ weight[expert]
        return y

    def expert_linear_dw(self, x: Array, g: Array, experts: Array, n: int) -> Array:
        dw = np.zeros((n, x.shape[1], g.shape[1]), x.dtype)
        for expert, rows in rows_by_expert(experts, n):
            np.matmul(x[rows].T, g[rows], out=dw[expert])
        return dw
