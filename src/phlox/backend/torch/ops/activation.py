"""Activations by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, native

_aten: Any = torch.ops.aten
_LINEAR = 40.0
"""From here on softplus(x) is x in double precision; torch takes 20, which is right for single precision only."""


class Activation(Backend):
    """See `phlox.backend.contract.nn.activation`."""

    def float_relu_backward(self, g: Array, y: Array) -> Array:
        return _aten.threshold_backward.default(g, y, 0)

    float_leaky_relu = native(functional.leaky_relu)

    def float_leaky_relu_backward(self, g: Array, x: Array, slope: float) -> Array:
        return _aten.leaky_relu_backward(g, x, slope, False)

    float_threshold = native(functional.threshold)

    def float_threshold_backward(self, g: Array, x: Array, threshold: float, value: float) -> Array:
        return _aten.threshold_backward.default(g, x, threshold)

    float_elu = native(_aten.elu.default)

    def float_elu_backward(self, g: Array, x: Array, alpha: float, scale: float, rate: float) -> Array:
        return _aten.elu_backward(g, alpha, scale, rate, False, x)

    def float_softplus(self, x: Array) -> Array:
        return functional.softplus(x, 1.0, _LINEAR)

    def float_softplus_backward(self, g: Array, x: Array) -> Array:
        return _aten.softplus_backward(g, x, 1.0, _LINEAR)

    float_log_sigmoid = native(functional.logsigmoid)
    float_silu = native(functional.silu)
    float_silu_backward = native(_aten.silu_backward.default)
    float_mish = native(functional.mish)
    float_mish_backward = native(_aten.mish_backward.default)
    float_hardtanh_backward = native(_aten.hardtanh_backward.default)
    float_hardsigmoid = native(functional.hardsigmoid)
    float_hardswish = native(functional.hardswish)
    float_hardswish_backward = native(_aten.hardswish_backward.default)
    float_softshrink = native(functional.softshrink)
    float_softshrink_backward = native(_aten.softshrink_backward.default)
    float_hardshrink = native(functional.hardshrink)
    float_hardshrink_backward = native(_aten.hardshrink_backward.default)
