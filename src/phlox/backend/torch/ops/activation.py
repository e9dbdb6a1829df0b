"""Activations by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, native
from phlox.backend.torch import compat

_LINEAR = 40.0
"""From this x on, softplus(x) is x in double precision; torch's default 20 is right only in single precision."""


class Activation(Backend):
    """See `phlox.backend.contract.nn.activation`."""

    def float_relu_backward(self, g: Array, y: Array) -> Array:
        if not compat.THRESHOLD_BACKWARD.exists:
            return super().float_relu_backward(g, y)
        return compat.THRESHOLD_BACKWARD.value(g, y, 0)

    float_leaky_relu = native(functional.leaky_relu)

    def float_leaky_relu_backward(self, g: Array, x: Array, slope: float) -> Array:
        if not compat.LEAKY_RELU_BACKWARD.exists:
            return super().float_leaky_relu_backward(g, x, slope)
        return compat.LEAKY_RELU_BACKWARD.value(g, x, slope, False)

    float_threshold = native(functional.threshold)

    def float_threshold_backward(self, g: Array, x: Array, threshold: float, value: float) -> Array:
        if not compat.THRESHOLD_BACKWARD.exists:
            return super().float_threshold_backward(g, x, threshold, value)
        return compat.THRESHOLD_BACKWARD.value(g, x, threshold)

    float_elu = compat.preferred(compat.ELU)

    def float_elu_backward(self, g: Array, x: Array, alpha: float, scale: float, rate: float) -> Array:
        if not compat.ELU_BACKWARD.exists:
            return super().float_elu_backward(g, x, alpha, scale, rate)
        return compat.ELU_BACKWARD.value(g, alpha, scale, rate, False, x)

    def float_softplus(self, x: Array) -> Array:
        return functional.softplus(x, 1.0, _LINEAR)

    def float_softplus_backward(self, g: Array, x: Array) -> Array:
        if not compat.SOFTPLUS_BACKWARD.exists:
            return super().float_softplus_backward(g, x)
        return compat.SOFTPLUS_BACKWARD.value(g, x, 1.0, _LINEAR)

    float_log_sigmoid = native(functional.logsigmoid)
    float_silu = native(functional.silu)
    float_silu_backward = compat.preferred(compat.SILU_BACKWARD)
    float_mish = native(functional.mish)
    float_mish_backward = compat.preferred(compat.MISH_BACKWARD)
    float_hardtanh_backward = compat.preferred(compat.HARDTANH_BACKWARD)
    float_hardsigmoid = native(functional.hardsigmoid)
    float_hardswish = native(functional.hardswish)
    float_hardswish_backward = compat.preferred(compat.HARDSWISH_BACKWARD)
    float_softshrink = native(functional.softshrink)
    float_softshrink_backward = compat.preferred(compat.SOFTSHRINK_BACKWARD)
    float_hardshrink = native(functional.hardshrink)
    float_hardshrink_backward = compat.preferred(compat.HARDSHRINK_BACKWARD)


ACTIVATIONS = tuple([name for name in vars(Activation) if name.startswith("float_")])
"""The activations by PyTorch's kernels, which round the last elements of an array in another way than the others."""
