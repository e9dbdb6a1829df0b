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


def _less(lhs: Any, rhs: Any) -> bool | None:
    try:
        return bool(lhs < rhs)
    except InconclusiveDimensionOperation:
        return None


def _same(lhs: Any, rhs: Any) -> bool:
    return bool(lhs == rhs)


def _number(size: Any, real: bool) -> Any:
    # Weakly typed, so that it takes the precision of the arrays that it is combined with.
    return jnp.asarray(size) * 1.0 if real else jnp.asarray(size)


__all__ = ["InconclusiveDimensionOperation", "is_symbolic"]

InconclusiveDimensionOperation: type[Exception] = getattr(jax.errors, "InconclusiveDimensionOperation", Exception)
"""The exceptions of JAX for a condition that depends on the size of a symbolic dimension."""

RULES[type(export.symbolic_shape("n")[0])] = SizeRules(_less, _same, min_dim, max_dim, _number)
