"""Symbolic dimensions of `jax.export`."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.core import max_dim, min_dim

from phlox.backend.tracing.symbolic import RULES, SizeRules, is_symbolic


def _less(one: Any, other: Any) -> bool | None:
    try:
        return bool(one < other)
    except InconclusiveDimensionOperation:
        return None


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


def _number(size: Any, real: bool) -> Any:
    # Weakly typed, so that beside arrays of any precision it is as precise as they are.
    return jnp.asarray(size) * 1.0 if real else jnp.asarray(size)


__all__ = ["InconclusiveDimensionOperation", "is_symbolic"]

InconclusiveDimensionOperation: type[Exception] = getattr(jax.errors, "InconclusiveDimensionOperation", Exception)
"""The exceptions of JAX for a condition that depends on the size of a symbolic dimension."""

RULES[type(export.symbolic_shape("n")[0])] = SizeRules(_less, _same, min_dim, max_dim, _number)
