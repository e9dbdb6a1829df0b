"""Elementwise functions on JAX: its own, and the contract's definitions as compiled programs."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.special import SpecialOps
from phlox.backend.contract.types import Array
from phlox.backend.jax.fused import Activation, fused
from phlox.backend.jax.ops import several, simple


def _digamma(x: Array) -> Array:
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))  # at zero, JAX has NaN


def _sinc(x: Array) -> Array:
    return jnp.where(jnp.isinf(x), jnp.nan, jnp.sinc(x))  # at infinity, JAX 0.12 has the limit


class Elementwise(Activation):
    """See `phlox.backend.contract.elementwise`, `special` and `arithmetic`."""

    float_fmod = simple(jnp.fmod)
    float_mod = fused(ArithmeticOps.float_mod)
    float_floordiv = fused(ArithmeticOps.float_floordiv)
    float_signbit = fused(ArithmeticOps.float_signbit)
    float_copysign = fused(ArithmeticOps.float_copysign)
    float_isclose = fused(ArithmeticOps.float_isclose, 4)
    float_isnan = simple(jnp.isnan)
    float_isinf = simple(jnp.isinf)

    float_tan = simple(lax.tan)
    float_asin = simple(lax.asin)
    float_acos = simple(lax.acos)
    float_atan = simple(lax.atan)
    float_atan2 = simple(jnp.arctan2)
    float_sinh = simple(lax.sinh)
    float_cosh = simple(lax.cosh)
    float_asinh = simple(lax.asinh)
    float_acosh = simple(lax.acosh)
    float_atanh = simple(lax.atanh)
    float_erfc = simple(lax.erfc)
    float_erfinv = simple(lax.erf_inv)
    float_lgamma = simple(lax.lgamma)
    float_digamma = simple(_digamma)
    float_trigamma = fused(SpecialOps.float_trigamma)

    float_square = simple(jnp.square)
    float_reciprocal = simple(jnp.reciprocal)
    float_hypot = several(jnp.hypot)
    float_cbrt = simple(lax.cbrt)
    float_exp2 = several(lambda x: jnp.power(2.0, x))  # lax.exp2 loses five bits
    float_log2 = several(jnp.log2)
    float_log10 = several(jnp.log10)
    float_logaddexp = several(jnp.logaddexp)
    float_xlogy = fused(ElementwiseOps.float_xlogy)
    float_sigmoid = simple(lax.logistic)
    float_sigmoid_backward = fused(ElementwiseOps.float_sigmoid_backward)
    float_tanh_backward = fused(ElementwiseOps.float_tanh_backward)
    float_logit = fused(ElementwiseOps.float_logit)
    float_sinc = several(_sinc)
    float_sinc_backward = fused(ElementwiseOps.float_sinc_backward)
    float_trunc = simple(jnp.trunc)
    float_nan_to_num = fused(ElementwiseOps.float_nan_to_num)
    float_lerp = fused(ElementwiseOps.float_lerp)

    int_not_equal = simple(jnp.not_equal)
    int_square = simple(jnp.square)
    int_matmul = simple(jnp.matmul)
    int_and = simple(jnp.bitwise_and)
    int_or = simple(jnp.bitwise_or)
    int_xor = simple(jnp.bitwise_xor)
    int_not = simple(jnp.bitwise_not)
    int_left_shift = simple(jnp.left_shift)
    int_right_shift = simple(jnp.right_shift)

    bool_equal = simple(jnp.equal)
    bool_not_equal = simple(jnp.not_equal)
