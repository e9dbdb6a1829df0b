"""Reductions and scans on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Axes, Shape, native
from phlox.backend.torch import compat
from phlox.backend.torch.sizes import is_empty, is_known

_LONG = 1 << 12
"""The number of elements from which PyTorch's norm, unlike its sum, is inaccurate: it adds them one by one."""


def _values(fn: Callable[..., Any]) -> Any:
    """A function that returns values and indices, as a function that returns the values."""
    return staticmethod(lambda x, axis: fn(x, axis).values)


class Reduction(Backend):
    """See `phlox.backend.contract.reduction`. Over no axes at all, torch would reduce over every one."""

    torch_int: torch.dtype

    def float_mean(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        return torch.mean(x, axes, keepdims) if axes else x

    def float_var(self, x: Array, axes: Axes, correction: float, keepdims: bool) -> Array:
        if not axes or is_empty(x) or (is_known(x) and self._count(x, axes) <= correction):  # torch would warn
            return super().float_var(x, axes, correction, keepdims)
        return torch.var(x, axes, correction=correction, keepdim=keepdims)

    def float_logsumexp(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        return torch.logsumexp(x, axes, keepdims) if axes else x

    def float_norm(self, x: Array, axes: Axes, p: float, keepdims: bool) -> Array:
        if not axes or is_empty(x) or (is_known(x) and self._count(x, axes) > _LONG):
            return super().float_norm(x, axes, p, keepdims)
        return torch.linalg.vector_norm(x, p, axes, keepdims)

    def bool_count_nonzero(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        if self._counts_too_many(x, axes):
            return super().bool_count_nonzero(x, axes, keepdims)
        return torch.sum(x, axes, keepdims, dtype=self.torch_int) if axes else x.to(self.torch_int)

    float_cumprod = native(torch.cumprod)
    float_logcumsumexp = native(torch.logcumsumexp)

    def int_cumprod(self, x: Array, axis: int) -> Array:
        return torch.cumprod(x, axis, dtype=self.torch_int)

    float_cummax = int_cummax = _values(torch.cummax)
    float_cummin = int_cummin = _values(torch.cummin)

    def float_windows_adjoint(self, g: Array, axis: int, size: int, step: int, shape: Shape) -> Array:
        if not compat.UNFOLD_BACKWARD.exists:
            return super().float_windows_adjoint(g, axis, size, step, shape)
        return compat.UNFOLD_BACKWARD.value(g, shape, axis, size, step)
