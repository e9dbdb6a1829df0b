"""Losses on JAX: each composite is one program."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.loss import LossOps
from phlox.backend.contract.types import Array
from phlox.backend.jax import explicit
from phlox.backend.jax.fused import fused


class Loss(Backend):
    """See `phlox.backend.contract.nn.loss`."""

    float_binary_cross_entropy = fused(LossOps.float_binary_cross_entropy)
    float_binary_cross_entropy_backward = fused(LossOps.float_binary_cross_entropy_backward)
    cross_entropy_forward = fused(LossOps.cross_entropy_forward, 3, 4)
    cross_entropy_backward = fused(LossOps.cross_entropy_backward, 2, 3, 4)
    ctc_loss_forward = fused(LossOps.ctc_loss_forward, 4)
    ctc_loss_backward = fused(LossOps.ctc_loss_backward, 2, 3)

    def _ctc_scan(self, emitted: Array, skip: Array, start: Array, fresh: Array) -> Array:
        """As a loop in the program, whose size does not grow with the steps."""
        never = self._ctc_never()

        def step(before: Array, inputs: tuple[Array, Array]) -> tuple[Array, Any]:
            emission, is_fresh = inputs
            arrived = self._logaddexp3(
                before,
                self._shifted_states(before, 1, never),
                self._shifted_states(before, 2, never) + skip,
            )
            after = self.where(is_fresh[:, None], start, arrived) + emission
            return after, after

        along = emitted, fresh
        return lax.scan(step, explicit.settled(step, start, along), along)[1]
