"""Elementwise functions on NumPy: its own functions, and the contract's definitions of others, block by block."""

from __future__ import annotations

import numpy as np

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.special import SpecialOps
from phlox.backend.contract.types import Array, native
from phlox.backend.numpy.activation import Activation, in_parts

_quiet = np.errstate(all="ignore")


def _sigmoid(backend: object, x: Array) -> Array:
    return np.divide(1.0, np.add(np.exp(np.negative(x)), 1.0))


class Elementwise(Activation):
    """See `phlox.backend.contract.elementwise`, `special` and `arithmetic`."""

    float_fmod = native(_quiet(np.fmod))
    float_mod = native(_quiet(np.remainder))
    float_floordiv = native(_quiet(np.floor_divide))

    def float_signbit(self, x: Array) -> Array:
        return np.signbit(x) & np.equal(x, x)  # NaN has none

    float_copysign = _quiet(ArithmeticOps.float_copysign)
    float_isclose = _quiet(ArithmeticOps.float_isclose)
    float_not_equal = native(np.not_equal)
    float_greater = native(np.greater)
    float_greater_equal = native(np.greater_equal)
    float_isnan = native(np.isnan)
    float_isinf = native(np.isinf)
    float_isfinite = native(np.isfinite)

    float_tan = native(_quiet(np.tan))
    float_asin = native(_quiet(np.arcsin))
    float_acos = native(_quiet(np.arccos))
    float_atan = native(np.arctan)
    float_atan2 = native(np.arctan2)
    float_sinh = native(_quiet(np.sinh))
    float_cosh = native(_quiet(np.cosh))
    float_asinh = native(np.arcsinh)
    float_acosh = native(_quiet(np.arccosh))
    float_atanh = native(_quiet(np.arctanh))
    float_erfc = in_parts(SpecialOps.float_erfc)
    float_erfinv = in_parts(SpecialOps.float_erfinv)
    float_lgamma = in_parts(SpecialOps.float_lgamma)
    float_digamma = in_parts(SpecialOps.float_digamma)
    float_trigamma = in_parts(SpecialOps.float_trigamma)

    float_hypot = native(_quiet(np.hypot))
    float_cbrt = native(np.cbrt)
    float_exp2 = native(_quiet(np.exp2))
    float_log2 = native(_quiet(np.log2))
    float_log10 = native(_quiet(np.log10))
    float_logaddexp = native(_quiet(np.logaddexp))
    float_xlogy = _quiet(ElementwiseOps.float_xlogy)
    float_sigmoid = in_parts(_sigmoid)
    float_logit = in_parts(ElementwiseOps.float_logit)
    float_sinc = in_parts(ElementwiseOps.float_sinc)
    float_trunc = native(np.trunc)

    int_not_equal = native(np.not_equal)
    int_greater = native(np.greater)
    int_greater_equal = native(np.greater_equal)
    int_square = native(_quiet(np.square))
    int_matmul = native(np.matmul)
    int_and = native(np.bitwise_and)
    int_or = native(np.bitwise_or)
    int_xor = native(np.bitwise_xor)
    int_not = native(np.invert)
    # Shifts by too many bits or by a negative number are undefined in C; NumPy gives the contract's results.
    int_left_shift = native(np.left_shift)
    int_right_shift = native(np.right_shift)

    bool_equal = native(np.equal)
    bool_not_equal = native(np.not_equal)
