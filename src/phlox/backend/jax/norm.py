"""Normalisation on JAX: each composite is one program."""

from __future__ import annotations

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.norm import NormOps
from phlox.backend.jax.fused import fused


class Norm(Backend):
    """See `phlox.backend.contract.nn.norm`."""

    layer_norm_forward = fused(NormOps.layer_norm_forward, 3)
    layer_norm_backward = fused(NormOps.layer_norm_backward, 2, 3)
    rms_norm_forward = fused(NormOps.rms_norm_forward, 2)
    rms_norm_backward = fused(NormOps.rms_norm_backward, 2, 3)
    group_norm_forward = fused(NormOps.group_norm_forward, 3, 4)
    group_norm_backward = fused(NormOps.group_norm_backward, 2, 3, 4)
    batch_norm_train_forward = fused(NormOps.batch_norm_train_forward, 3)
    batch_norm_train_backward = fused(NormOps.batch_norm_train_backward, 2, 3)
