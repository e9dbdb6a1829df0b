"""Linear maps and activations on JAX: each composite is one program."""

from __future__ import annotations

from typing import Any

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.dense import DenseOps
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.jax.fused import fused


def _gelu_backward(self: Any, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
    # Or XLA would keep what the way there has computed, a second array as large as x, which costs more than computing
    # it again in the loop that reads x anyway.
    return DenseOps.gelu_backward(self, self.barrier(saved, g), g, needed, approximate)


class Dense(Backend):
    """See `phlox.backend.contract.nn.dense`."""

    linear = fused(DenseOps.linear)
    linear_backward = fused(DenseOps.linear_backward, 2)
    softmax = fused(DenseOps.softmax, 1)
    softmax_backward = fused(DenseOps.softmax_backward, 2, 3)
    log_softmax = fused(DenseOps.log_softmax, 1)
    log_softmax_backward = fused(DenseOps.log_softmax_backward, 2, 3)
    gelu = fused(DenseOps.gelu, 1)
    gelu_backward = fused(_gelu_backward, 2, 3)
