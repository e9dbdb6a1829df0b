"""Elementwise functions by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from phlox.backend.contract.types import Array, native
from phlox.backend.torch import compat
from phlox.backend.torch.ops.activation import Activation


def _of_tensors(function: Callable[..., Any]) -> Any:
    """A function that takes no numbers."""

    def operation(self: Any, lhs: Any, rhs: Any) -> Array:
        return function(*self._floats(lhs, rhs))

    return operation


class Elementwise(Activation):
    """See `phlox.backend.contract.elementwise`, `special` and `arithmetic`."""

    float_tanh_backward = compat.preferred(compat.TANH_BACKWARD)
    float_sigmoid_backward = compat.preferred(compat.SIGMOID_BACKWARD)

    float_fmod = _of_tensors(torch.fmod)
    float_floordiv = _of_tensors(torch.floor_divide)

    def float_mod(self, lhs: Any, rhs: Any) -> Array:
        lhs, rhs = self._floats(lhs, rhs)
        remainder = torch.remainder(lhs, rhs)
        # torch gives a zero the sign of the dividend.
        return torch.where(remainder == 0.0, torch.copysign(remainder, rhs), remainder)

    float_greater = native(operator.gt)
    float_greater_equal = native(operator.ge)
    float_isnan = native(torch.isnan)
    float_isinf = native(torch.isinf)
    float_isfinite = native(torch.isfinite)

    float_tan = native(torch.tan)
    float_asin = native(torch.asin)
    float_acos = native(torch.acos)
    float_atan = native(torch.atan)
    float_atan2 = _of_tensors(torch.atan2)
    float_sinh = native(torch.sinh)
    float_cosh = native(torch.cosh)
    float_asinh = native(torch.asinh)
    float_acosh = native(torch.acosh)
    float_atanh = native(torch.atanh)
    float_erfc = native(torch.erfc)
    float_erfinv = native(torch.erfinv)
    float_lgamma = native(torch.lgamma)
    float_digamma = native(torch.digamma)  # its trigamma has nine digits only

    float_reciprocal = native(torch.reciprocal)
    float_hypot = _of_tensors(torch.hypot)
    float_exp2 = native(torch.exp2)
    float_log2 = native(torch.log2)
    float_log10 = native(torch.log10)
    float_logaddexp = _of_tensors(torch.logaddexp)
    float_xlogy = native(torch.xlogy)
    float_sinc = native(torch.sinc)
    float_trunc = native(torch.trunc)

    int_not_equal = native(operator.ne)
    int_greater = native(operator.gt)
    int_greater_equal = native(operator.ge)
    int_square = native(torch.square)
    int_and = native(operator.and_)
    int_or = native(operator.or_)
    int_xor = native(operator.xor)
    int_not = native(torch.bitwise_not)
    int_left_shift = native(operator.lshift)
    int_right_shift = native(operator.rshift)

    def int_matmul(self, lhs: Array, rhs: Array) -> Array:
        return torch.matmul(lhs, rhs) if lhs.device.type == "cpu" else super().int_matmul(lhs, rhs)

    bool_equal = native(operator.eq)
    bool_not_equal = native(operator.ne)
