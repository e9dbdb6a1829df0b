"""Mixtures of experts on JAX: the definition as one program; on several devices, products that can be sharded."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.experts import ExpertOps
from phlox.backend.contract.types import Array
from phlox.backend.jax.fused import fused


def _expert_linear(self: Any, x: Array, weight: Array, experts: Array) -> Array:
    """As in the contract. Where weights may be sharded by expert, each device computes the rows of its own.

    The partitioner would gather all weights for the definition, which takes them by index.
    """
    if jax.device_count() == 1:
        return ExpertOps.expert_linear(self, x, weight, experts)
    order = jnp.argsort(experts)
    counts = jnp.sum(experts[:, None] == jnp.arange(weight.shape[0]), 0, dtype=jnp.int32)
    y = lax.ragged_dot(x[order], weight, counts)
    return jnp.zeros_like(y).at[order].set(y)


class Experts(Backend):
    """See `phlox.backend.contract.nn.experts`."""

    expert_linear = fused(_expert_linear)
    expert_linear_dw = fused(ExpertOps.expert_linear_dw, 3)
