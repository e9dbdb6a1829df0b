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
from phlox.backend.contract.widening import composed
from phlox.backend.jax import explicit
from phlox.backend.jax.fused import fused

_NARROW = 4
"""If a weight has so many times fewer columns than rows, its output's gradient is transposed, not its input."""


def _linear(self: Any, x: Array, weight: Array, bias: Array | None) -> Array:
    """As in the contract, except that axes with a sharding in their type are not merged."""
    if not explicit.is_sharded(x):
        return DenseOps.linear(self, x, weight, bias)
    y = explicit.matmul(x, weight)
    return y if bias is None else y + bias


def _linear_backward(self: Any, saved: Any, g: Array, needed: Needed) -> Gradients:
    """As in the contract, except for the products."""
    x, weight = saved
    if explicit.is_sharded(x, g):
        x, g = explicit.aligned_rows(x, g, x.ndim - 1)
        dx = explicit.matmul(g, weight.T) if needed[0] else None
        dw = explicit.product_of_rows(x, g) if needed[1] else None
        return dx, dw, g.sum(range(g.ndim - 1)) if needed[2] else None
    dx, dw, db = DenseOps.linear_backward(self, saved, g, (needed[0], False, needed[2]))
    if needed[1]:
        rows = math.prod(x.shape[:-1])
        dw = _weight_gradient(self, x.reshape(rows, weight.shape[0]), g.reshape(rows, weight.shape[1]))
    return dx, dw, db


def _weight_gradient(self: Any, x: Array, g: Array) -> Array:
    """x' g; on a CPU, one of the two is transposed first: x, unless g has far fewer elements.

    XLA's loops for a product with a transposed left side take up to three times as long as its other kernels.
    """
    if jax.default_backend() != "cpu":
        return self.float_matmul(x.T, g)
    # Between barriers, or XLA would undo the transposition.
    if x.shape[1] < _NARROW * g.shape[1]:
        return self.float_matmul(lax.optimization_barrier(x.T), g)
    return lax.optimization_barrier(self.float_matmul(lax.optimization_barrier(g.T), x)).T


def _gelu_backward(self: Any, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
    # Without the barrier, XLA would keep the values of the forward pass, a second array as large as x, which costs more
    # than computing them again in the loop that reads x anyway.
    return DenseOps.gelu_backward(self, self.barrier(saved, g), g, needed, approximate)


def _linear_apart(self: Any, x: Array, weight: Array, bias: Array | None) -> Array:
    """As in the contract, without merging axes: XLA cannot shard an axis merged from a sharded and an unsharded one."""
    y = self.float_matmul(x, weight)
    return y if bias is None else y + bias


def _linear_backward_apart(self: Any, saved: Any, g: Array, needed: Needed) -> Gradients:
    x, weight = saved
    rows = tuple(range(g.ndim - 1))
    dx = self.float_matmul(g, weight.T) if needed[0] else None
    dw = lax.dot_general(x, g, ((rows, rows), ((), ()))) if needed[1] else None
    return dx, dw, g.sum(rows) if needed[2] else None


_MERGED, _APART = fused(_linear), fused(_linear_apart)
_BACKWARD_MERGED, _BACKWARD_APART = fused(_linear_backward, 2), fused(_linear_backward_apart, 2)


@composed
def _either(self: Any, x: Array, weight: Array, bias: Array | None) -> Array:
    return (_APART if self.cuts_sequences(x) else _MERGED)(self, x, weight, bias)


@composed
def _either_backward(self: Any, saved: Any, g: Array, needed: Needed) -> Gradients:
    return (_BACKWARD_APART if self.cuts_sequences(g) else _BACKWARD_MERGED)(self, saved, g, needed)


class Dense(Backend):
    """See `phlox.backend.contract.nn.linear`."""

    linear = _either
    linear_backward = _either_backward
    softmax = fused(DenseOps.softmax, 1)
    softmax_backward = fused(DenseOps.softmax_backward, 2, 3)
    log_softmax = fused(DenseOps.log_softmax, 1)
    log_softmax_backward = fused(DenseOps.log_softmax_backward, 2, 3)
    gelu = fused(DenseOps.gelu, 1)
    gelu_backward = fused(_gelu_backward, 2, 3)
