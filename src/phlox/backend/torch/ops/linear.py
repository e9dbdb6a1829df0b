"""Linear maps and activations by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.linear import GELU_FAR, SQRT_2_OVER_PI, TANH_CUBIC
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.torch import compat
from phlox.backend.torch.cpu.gemm import multiply
from phlox.backend.torch.tracer import is_fused


class Dense(Backend):
    """See `phlox.backend.contract.nn.linear`."""

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        if x.ndim == 2:
            return multiply(x, weight, bias)
        *leading, depth = x.shape
        return multiply(x.reshape(math.prod(leading), depth), weight, bias).reshape(*leading, weight.shape[1])

    def linear_backward(self, saved: Any, g: Array, needed: Needed) -> Gradients:
        x, weight = saved
        if x.ndim != 2:
            rows = math.prod(x.shape[:-1])
            g, flat = g.reshape(rows, weight.shape[1]), x.reshape(rows, weight.shape[0])
        else:
            flat = x
        dx = multiply(g, weight.t()) if needed[0] else None
        dw = multiply(flat.t(), g) if needed[1] else None
        db = g.sum(0) if needed[2] else None
        return (dx if dx is None or x.ndim == 2 else dx.reshape(x.shape)), dw, db

    def softmax(self, x: Array, axis: int) -> Array:
        # Counted from the end, as in the patterns by which the compiler knows attention (see `compiler/fences.py`).
        return torch.softmax(x, axis - x.ndim)

    def softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        if not compat.SOFTMAX_BACKWARD.exists:
            return super().softmax_backward(saved, g, needed, axis)
        return (compat.SOFTMAX_BACKWARD.value(g, saved, axis, g.dtype),)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return torch.log_softmax(x, axis)

    def log_softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        if not compat.LOG_SOFTMAX_BACKWARD.exists:
            return super().log_softmax_backward(saved, g, needed, axis)
        return (compat.LOG_SOFTMAX_BACKWARD.value(g, saved, axis, g.dtype),)

    def gelu(self, x: Array, approximate: bool) -> Array:
        if approximate and is_fused(x):
            return super().gelu(x, approximate)
        return functional.gelu(x, approximate="tanh" if approximate else "none")

    def gelu_backward(self, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
        if (approximate and is_fused(saved)) or not compat.GELU_BACKWARD.exists:
            return super().gelu_backward(saved, g, needed, approximate)
        x = saved.clamp(-GELU_FAR, GELU_FAR)  # beyond, its kernels meet infinities
        return (compat.GELU_BACKWARD.value(g, x, approximate="tanh" if approximate else "none"),)

    def _normal_cdf(self, x: Array, approximate: bool) -> Array:
        if not approximate:
            return super()._normal_cdf(x, approximate)
        # (1 + tanh(u)) / 2 is sigmoid(2u), and the loop that is made of it takes a third of the time.
        return torch.sigmoid(x * (x * x * (2.0 * TANH_CUBIC * SQRT_2_OVER_PI) + 2.0 * SQRT_2_OVER_PI))
