"""Reductions and scans on JAX."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.types import Array, Axes, Shape
from phlox.backend.jax.ops import op, reduction
from phlox.backend.jax.shape import window_indices
from phlox.backend.jax.sizes import is_symbolic


def _scan(fn: Callable[[Array, int], Array]) -> Any:
    return staticmethod(op(1)(fn))


@op(1, 2)
def _logsumexp(x: Array, axes: Axes, keepdims: bool) -> Array:
    return jax.nn.logsumexp(x, axes, keepdims=keepdims)


@op(1, 2, 3)
def _var(x: Array, axes: Axes, correction: float, keepdims: bool) -> Array:
    return jnp.var(x, axes, correction=correction, keepdims=keepdims)


@op(1, 2, 3)
def _count_true(x: Array, axes: Axes, keepdims: bool, dtype: Any) -> Array:
    return jnp.sum(x, axes, dtype, keepdims=keepdims)


@op(0, 2)
def _logcumsumexp(B: Backend, x: Array, axis: int) -> Array:
    # XLA's own (lax.cumlogsumexp) takes fifteen times as long on a CPU.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return ReductionOps.float_logcumsumexp(B, wide, axis).astype(x.dtype)


@op(1, 2, 3, 4)
def _windows_adjoint(g: Array, axis: int, size: int, step: int, shape: Shape) -> Array:
    rows = jnp.moveaxis(g, -1, axis + 1)
    position = (*(slice(None),) * axis, window_indices(g.shape[axis], size, step))
    return jnp.zeros(shape, g.dtype).at[position].add(rows, mode="promise_in_bounds")


class Reduction(Backend):
    """See `phlox.backend.contract.reduction`."""

    jax_int: Any
    float_mean = reduction(jnp.mean)

    def float_var(self, x: Array, axes: Axes, correction: float, keepdims: bool) -> Array:
        if not is_symbolic(count := self._count(x, axes)) and count <= correction:
            return super().float_var(x, axes, correction, keepdims)
        return _var(x, axes, correction, keepdims)

    float_logsumexp = staticmethod(_logsumexp)

    def bool_count_nonzero(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        if self._counts_too_many(x, axes):
            return super().bool_count_nonzero(x, axes, keepdims)
        return _count_true(x, axes, keepdims, self.jax_int)

    float_cumprod = _scan(lax.cumprod)
    int_cumprod = _scan(lax.cumprod)
    float_cummax = _scan(lax.cummax)
    int_cummax = _scan(lax.cummax)
    float_cummin = _scan(lax.cummin)
    int_cummin = _scan(lax.cummin)

    def float_logcumsumexp(self, x: Array, axis: int) -> Array:
        return _logcumsumexp(self, x, axis)

    float_windows_adjoint = staticmethod(_windows_adjoint)
