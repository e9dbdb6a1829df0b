"""Linear maps and activations on JAX: each composite is one program."""

from __future__ import annotations

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.dense import DenseOps
from phlox.backend.jax.fused import fused


class Dense(Backend):
    """See `phlox.backend.contract.nn.dense`."""

    linear = fused(DenseOps.linear)
    linear_backward = fused(DenseOps.linear_backward, 2)
    softmax = fused(DenseOps.softmax, 1)
    softmax_backward = fused(DenseOps.softmax_backward, 2, 3)
    log_softmax = fused(DenseOps.log_softmax, 1)
    log_softmax_backward = fused(DenseOps.log_softmax_backward, 2, 3)
    gelu = fused(DenseOps.gelu, 1)
    gelu_backward = fused(DenseOps.gelu_backward, 2, 3)
