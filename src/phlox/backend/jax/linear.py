"""Linear maps and activations on JAX: each composite is one program."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.linear import DenseOps
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.jax.fused import fused

_NARROW = 4
"""Of a weight with so many times fewer columns than rows, the gradients of its columns are turned, not its inputs."""


def _linear_backward(self: Any, saved: Any, g: Array, needed: Needed) -> Gradients:
    """As the contract has it, but for the products."""
    x, weight = saved
    dx, dw, db = DenseOps.linear_backward(self, saved, g, (needed[0], False, needed[2]))
    if needed[1]:
        rows = math.prod(x.shape[:-1])
        dw = _weight_gradient(self, x.reshape(rows, weight.shape[0]), g.reshape(rows, weight.shape[1]))
    return dx, dw, db


def _weight_gradient(self: Any, x: Array, g: Array) -> Array:
    """x' g; on a processor with one of the two turned first: x, unless g has far fewer numbers.

    XLA's loops for a product whose left side is turned take up to three times as long as its others, which are written
    with more care.
    """
    if jax.default_backend() != "cpu":
        return self.float_matmul(x.T, g)
    # Between barriers, or XLA would turn the product around again.
    if x.shape[1] < _NARROW * g.shape[1]:
        return self.float_matmul(lax.optimization_barrier(x.T), g)
    return lax.optimization_barrier(self.float_matmul(lax.optimization_barrier(g.T), x)).T


def _gelu_backward(self: Any, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
    # Or XLA would keep what the way there has computed, a second array as large as x, which costs more than computing
    # it again in the loop that reads x anyway.
    return DenseOps.gelu_backward(self, self.barrier(saved, g), g, needed, approximate)


class Dense(Backend):
    """See `phlox.backend.contract.nn.linear`."""

    linear = fused(DenseOps.linear)
    linear_backward = fused(_linear_backward, 2)
    softmax = fused(DenseOps.softmax, 1)
    softmax_backward = fused(DenseOps.softmax_backward, 2, 3)
    log_softmax = fused(DenseOps.log_softmax, 1)
    log_softmax_backward = fused(DenseOps.log_softmax_backward, 2, 3)
    gelu = fused(DenseOps.gelu, 1)
    gelu_backward = fused(_gelu_backward, 2, 3)
