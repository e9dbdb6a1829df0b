"""Interpolation and sampling on JAX: each composite is one program."""

from __future__ import annotations

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.sampling import SamplingOps
from phlox.backend.jax.fused import fused


class Sampling(Backend):
    """See `phlox.backend.contract.nn.sampling`."""

    interpolate = fused(SamplingOps.interpolate, 1)
    grid_sample_forward = fused(SamplingOps.grid_sample_forward, 2, 3, 4)
    grid_sample_backward = fused(SamplingOps.grid_sample_backward, 2, 3, 4, 5)
