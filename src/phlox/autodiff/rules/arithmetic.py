"""Elementwise operations. In every rule g is the gradient of the result."""

from __future__ import annotations

import math
from typing import Any

from phlox.autodiff.build import Binary, General, Partial, Rule, Unary, sum_to
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed

_LOG2, _LOG10 = math.log(2.0), math.log(10.0)


def _power_base(B: Backend, g: Array, x: Array, y: Array, z: Array) -> Array:
    """y x^(y-1); zero where y is zero, whatever x is."""
    if isinstance(y, (int, float)):
        return B.float_mul(g, B.float_mul(B.float_pow(x, y - 1), y) if y != 0 else 0.0)
    flat = B.float_equal(y, 0.0)
    slope = B.float_mul(y, B.float_pow(x, B.where(flat, 1.0, B.float_sub(y, 1.0))))
    return B.float_mul(g, B.where(flat, 0.0, slope))


def _power_exponent(B: Backend, g: Array, x: Array, y: Array, z: Array) -> Array:
    """z log(x); zero where x is zero and y is not negative, the limit."""
    if isinstance(x, (int, float)) and x != 0:
        return B.float_mul(g, B.float_mul(z, math.log(x) if x > 0 else math.nan))
    if isinstance(x, (int, float)):
        return B.float_mul(g, B.where(B.float_less_equal(0.0, y), 0.0, -math.inf))
    zero = B.bool_and(B.float_equal(x, 0.0), B.float_less_equal(0.0, y))
    return B.float_mul(g, B.where(zero, 0.0, B.float_mul(z, B.float_log(B.where(zero, 1.0, x)))))


def _extreme_share(B: Backend, g: Array, operand: Array, other: Array, z: Array) -> Array:
    """The share of g for one operand of maximum or minimum: all if only it equals z or if it is NaN, half in a tie."""
    won = B.bool_into_float(B.bool_or(B.float_equal(operand, z), B.bool_not(B.float_equal(operand, operand))))
    tie = B.bool_into_float(B.float_equal(operand, other))
    return B.float_mul(g, B.float_sub(won, B.float_mul(tie, 0.5)))


def _clip(B: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
    """The gradient goes to x within the bounds (inclusive), and to a bound where the result is that bound and not x."""
    x, low, high = saved
    dx = dlow = dhigh = None
    if needed[0]:
        dx = g if low is None else B.where(B.float_less(x, low), 0.0, g)
        dx = sum_to(B, dx if high is None else B.where(B.float_less(high, x), 0.0, dx), B.shape(x))
    if needed[1]:
        below = B.float_less(x, low)
        below = below if high is None else B.bool_and(below, B.float_less_equal(low, high))
        dlow = sum_to(B, B.where(below, g, 0.0), B.shape(low))
    if needed[2]:
        above = B.float_less(high, x if low is None else B.float_maximum(x, low))
        dhigh = sum_to(B, B.where(above, g, 0.0), B.shape(high))
    return dx, dlow, dhigh


def _zero(B: Backend, g: Array, *_: Any) -> Array:
    return B.float_mul(g, 0.0)


ARITHMETIC: dict[str, Rule] = {
    # z = f(x, y)
    "float_add": Binary(Partial("", lambda B, g, x, y, z: g), Partial("", lambda B, g, x, y, z: g)),
    "float_sub": Binary(Partial("", lambda B, g, x, y, z: g), Partial("", lambda B, g, x, y, z: B.float_neg(g))),
    "float_mul": Binary(
        Partial("y", lambda B, g, x, y, z: B.float_mul(g, y)),
        Partial("x", lambda B, g, x, y, z: B.float_mul(g, x)),
    ),
    "float_div": Binary(
        Partial("y", lambda B, g, x, y, z: B.float_div(g, y)),
        Partial("yz", lambda B, g, x, y, z: B.float_neg(B.float_div(B.float_mul(g, z), y))),
    ),
    "float_pow": Binary(Partial("xyz", _power_base), Partial("xyz", _power_exponent)),
    "float_maximum": Binary(
        Partial("xyz", lambda B, g, x, y, z: _extreme_share(B, g, x, y, z)),
        Partial("xyz", lambda B, g, x, y, z: _extreme_share(B, g, y, x, z)),
    ),
    "float_minimum": Binary(
        Partial("xyz", lambda B, g, x, y, z: _extreme_share(B, g, x, y, z)),
        Partial("xyz", lambda B, g, x, y, z: _extreme_share(B, g, y, x, z)),
    ),
    # With remainder: x = floordiv(x, y) y + mod(x, y).
    "float_fmod": Binary(
        Partial("", lambda B, g, x, y, z: g),
        Partial("xy", lambda B, g, x, y, z: B.float_neg(B.float_mul(g, B.float_trunc(B.float_div(x, y))))),
    ),
    "float_mod": Binary(
        Partial("", lambda B, g, x, y, z: g),
        Partial("xy", lambda B, g, x, y, z: B.float_neg(B.float_mul(g, B.float_floordiv(x, y)))),
    ),
    "float_floordiv": Binary(Partial("", _zero), Partial("", _zero)),
    # y = f(x)
    "float_neg": Unary("", lambda B, g, x, y: B.float_neg(g)),
    "float_abs": Unary("x", lambda B, g, x, y: B.float_mul(g, B.float_sign(x))),
    "float_sign": Unary("", _zero),
    "float_floor": Unary("", _zero),
    "float_ceil": Unary("", _zero),
    "float_round": Unary("", _zero),
    "float_trunc": Unary("", _zero),
    "float_exp": Unary("y", lambda B, g, x, y: B.float_mul(g, y)),
    "float_expm1": Unary("y", lambda B, g, x, y: B.float_mul(g, B.float_add(y, 1.0))),
    "float_log": Unary("x", lambda B, g, x, y: B.float_div(g, x)),
    "float_log1p": Unary("x", lambda B, g, x, y: B.float_div(g, B.float_add(x, 1.0))),
    "float_log2": Unary("x", lambda B, g, x, y: B.float_div(g, B.float_mul(x, _LOG2))),
    "float_log10": Unary("x", lambda B, g, x, y: B.float_div(g, B.float_mul(x, _LOG10))),
    "float_sqrt": Unary("y", lambda B, g, x, y: B.float_div(B.float_mul(g, 0.5), y)),
    "float_rsqrt": Unary("xy", lambda B, g, x, y: B.float_mul(g, B.float_div(B.float_mul(y, -0.5), x))),
    "float_square": Unary("x", lambda B, g, x, y: B.float_mul(B.float_mul(g, x), 2.0)),
    "float_reciprocal": Unary("y", lambda B, g, x, y: B.float_neg(B.float_mul(g, B.float_mul(y, y)))),
    "float_sin": Unary("x", lambda B, g, x, y: B.float_mul(g, B.float_cos(x))),
    "float_cos": Unary("x", lambda B, g, x, y: B.float_neg(B.float_mul(g, B.float_sin(x)))),
    "float_tan": Unary("y", lambda B, g, x, y: B.float_mul(g, B.float_add(B.float_mul(y, y), 1.0))),
    "float_tanh": Unary("y", lambda B, g, x, y: B.float_tanh_backward(g, y)),
    "float_sigmoid": Unary("y", lambda B, g, x, y: B.float_sigmoid_backward(g, y)),
    "float_clip": General(3, lambda B, x, low, high: (B.float_clip(x, low, high), (x, low, high)), _clip),
}
