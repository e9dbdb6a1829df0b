"""Elementwise functions beyond arithmetic, and activations. In every rule g is the gradient of the result."""

from __future__ import annotations

import math
from typing import Any

from phlox.autodiff.build import Binary, General, Partial, Result, Rule, Unary
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.host.dtypes import LARGEST

_LOG2 = math.log(2.0)
_FAR = 100.0
"""Beyond this |x|, exp(-x^2) is zero in double precision."""
_HALF_SQRT_PI = 0.5 * math.sqrt(math.pi)


def _times_bell(B: Backend, g: Array, x: Array, factor: float) -> Array:
    """g times factor times exp(-x^2)."""
    x = B.float_clip(x, -_FAR, _FAR)
    return B.float_mul(g, B.float_mul(B.float_exp(B.float_neg(B.float_mul(x, x))), factor))


def _clip_to_finite(B: Backend, x: Array) -> Array:
    """x limited to finite values: zero times the slope at an infinity would be NaN in further derivatives."""
    most = LARGEST[B.float_element] * 0.5
    return B.float_clip(x, -most, most)


def _one_minus_square(B: Backend, x: Array) -> Array:
    """1 - x^2, of full precision near one."""
    return B.float_mul(B.float_sub(1.0, x), B.float_add(x, 1.0))


def _per_length(B: Backend, g: Array, length: Array) -> Array:
    """g divided by a length. Where the length is zero, the result is the constant zero, and so are its derivatives."""
    none = B.float_equal(length, 0.0)
    return B.where(none, 0.0, B.float_div(g, B.where(none, 1.0, length)))


def _share(B: Backend, g: Array, operand: Any, other: Any) -> Array:
    """The share of g for an operand of logaddexp: exp(operand) / (exp(operand) + exp(other)); half of equals."""
    equal = B.float_equal(operand, other)
    ahead = B.float_sub(operand, B.where(equal, 0.0, other))  # never inf - inf
    return B.float_mul(g, B.where(equal, 0.5, B.float_sigmoid(ahead)))


def _xlogy_x(B: Backend, g: Array, x: Array, y: Array, z: Array) -> Array:
    """log(y); zero where x is zero and y is not positive, so that entropies have a gradient there."""
    flat = B.bool_and(B.float_equal(x, 0.0), B.float_less_equal(y, 0.0))
    return B.float_mul(g, B.where(flat, 0.0, B.float_log(B.where(flat, 1.0, y))))


def _xlogy_y(B: Backend, g: Array, x: Array, y: Array, z: Array) -> Array:
    """x / y; zero where x is zero."""
    zero = B.float_equal(x, 0.0)
    return B.float_mul(g, B.where(zero, 0.0, B.float_div(x, B.where(zero, 1.0, y))))


def _target_grad(B: Backend, g: Array, p: Array, target: Array, z: Array) -> Array:
    """g (log(1 - p) - log(p)), with the logarithms bounded as in the loss."""
    complement = B.float_sub(1.0, p)
    return B.float_mul(g, B.float_sub(B._bounded_log(complement, p), B._bounded_log(p, p)))  # pyright: ignore[reportPrivateUsage]


def _atan(B: Backend, g: Array, x: Array) -> Array:
    """g / (1 + x^2), in two steps, since the square may overflow."""
    length = B.float_hypot(x, 1.0)
    return B.float_div(B.float_div(g, length), length)


def _atan2(B: Backend, g: Array, coordinate: Any, y: Any, x: Any) -> Array:
    """g coordinate / (x^2 + y^2); zero at the origin, and where x or y is infinite."""
    is_infinite = B.float_isinf(B.float_hypot(y, x))
    coordinate, y, x = (v if type(v) in (int, float) else B.where(is_infinite, 0.0, v) for v in (coordinate, y, x))
    length = B.float_hypot(y, x)
    return _per_length(B, _per_length(B, B.float_mul(g, coordinate), length), length)


FUNCTIONS: dict[str, Rule] = {
    # Trigonometric
    "float_asin": Unary("x", lambda B, g, x, y: B.float_div(g, B.float_sqrt(_one_minus_square(B, x)))),
    "float_acos": Unary("x", lambda B, g, x, y: B.float_neg(B.float_div(g, B.float_sqrt(_one_minus_square(B, x))))),
    "float_atan": Unary("x", lambda B, g, x, y: _atan(B, g, _clip_to_finite(B, x))),
    "float_atan2": Binary(
        Partial("xy", lambda B, g, x, y, z: _atan2(B, g, y, x, y)),
        Partial("xy", lambda B, g, x, y, z: B.float_neg(_atan2(B, g, x, x, y))),
    ),
    # Hyperbolic
    "float_sinh": Unary("x", lambda B, g, x, y: B.float_mul(g, B.float_cosh(x))),
    "float_cosh": Unary("x", lambda B, g, x, y: B.float_mul(g, B.float_sinh(x))),
    "float_asinh": Unary("x", lambda B, g, x, y: B.float_div(g, B.float_hypot(_clip_to_finite(B, x), 1.0))),
    "float_acosh": Unary(
        "x",
        lambda B, g, x, y: B.float_div(
            B.float_div(g, B.float_sqrt(B.float_sub(x, 1.0))), B.float_sqrt(B.float_add(x, 1.0))
        ),
    ),
    "float_atanh": Unary("x", lambda B, g, x, y: B.float_div(g, _one_minus_square(B, x))),
    # Powers, logarithms, probabilities
    "float_hypot": Binary(
        Partial("xz", lambda B, g, x, y, z: B.float_mul(g, _per_length(B, x, z))),
        Partial("yz", lambda B, g, x, y, z: B.float_mul(g, _per_length(B, y, z))),
    ),
    "float_cbrt": Unary("y", lambda B, g, x, y: B.float_div(g, B.float_mul(B.float_mul(y, y), 3.0))),
    "float_sinc": Unary("x", lambda B, g, x, y: B.float_sinc_backward(g, x)),
    "float_exp2": Unary("y", lambda B, g, x, y: B.float_mul(g, B.float_mul(y, _LOG2))),
    "float_logaddexp": Binary(
        Partial("xy", lambda B, g, x, y, z: _share(B, g, x, y)), Partial("xy", lambda B, g, x, y, z: _share(B, g, y, x))
    ),
    "float_xlogy": Binary(Partial("xy", _xlogy_x), Partial("xy", _xlogy_y)),
    "float_binary_cross_entropy": Binary(
        Partial("xy", lambda B, g, p, t, z: B.float_binary_cross_entropy_backward(g, p, t)), Partial("x", _target_grad)
    ),
    "float_logit": Unary("x", lambda B, g, x, y: B.float_div(g, B.float_mul(x, B.float_sub(1.0, x)))),
    # Error and gamma functions
    "float_erf": Unary("x", lambda B, g, x, y: _times_bell(B, g, x, 1.0 / _HALF_SQRT_PI)),
    "float_erfc": Unary("x", lambda B, g, x, y: _times_bell(B, g, x, -1.0 / _HALF_SQRT_PI)),
    "float_erfinv": Unary(
        "y", lambda B, g, x, y: B.float_mul(g, B.float_mul(B.float_exp(B.float_mul(y, y)), _HALF_SQRT_PI))
    ),
    "float_lgamma": Unary("x", lambda B, g, x, y: B.float_mul(g, B.float_digamma(x))),
    "float_digamma": Unary("x", lambda B, g, x, y: B.float_mul(g, B.float_trigamma(x))),
}


def _activation(name: str, options: bool) -> Rule:
    """The rule of an activation whose derivative the backend has; see `contract.nn.activation`."""
    slope = f"{name}_backward"
    if not options:
        return Unary("x", lambda B, g, x, y: getattr(B, slope)(g, x))

    def forward(B: Backend, x: Array, *options: Any) -> Result:
        return getattr(B, name)(x, *options), x

    def backward(B: Backend, x: Any, g: Array, needed: Needed, *options: Any) -> Gradients:
        return (getattr(B, slope)(g, x, *options),)

    return General(1, forward, backward)


_PLAIN = (
    "softplus", "log_sigmoid", "silu", "mish", "softsign", "tanhshrink", "hardsigmoid", "hardswish",
)  # fmt: skip
_WITH_OPTIONS = ("leaky_relu", "threshold", "elu", "hardtanh", "softshrink", "hardshrink")

_ACTIVATIONS: dict[str, Rule] = {
    "float_relu": Unary("y", lambda B, g, x, y: B.float_relu_backward(g, y)),
    "float_prelu": Binary(
        Partial("xy", lambda B, g, x, y, z: B.where(B.float_less(0.0, x), g, B.float_mul(g, y))),
        Partial("x", lambda B, g, x, y, z: B.where(B.float_less(0.0, x), 0.0, B.float_mul(g, x))),
    ),
    **{f"float_{name}": _activation(f"float_{name}", False) for name in _PLAIN},
    **{f"float_{name}": _activation(f"float_{name}", True) for name in _WITH_OPTIONS},
}

SPECIAL: dict[str, Rule] = {**FUNCTIONS, **_ACTIVATIONS}
