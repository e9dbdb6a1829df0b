# ruff: noqa: E501
# pyright: standard
"""Activations, as methods and as functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox import functional as f
from phlox.testing.conformance.row import INF, NAN, SHAPES, SPECIAL, Row, exact, normal, other, sp, tf


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0) -> Any:
    return scale * np.where(x > 0, x, alpha * np.expm1(rate * np.minimum(x, 0.0)))


def _hard(x: Any) -> Any:
    return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, 0.0)


# The name, the options, the reference, and PyTorch's function, which defines the gradient at kinks.
_TABLE: dict[str, tuple[tuple[Any, ...], Any, Any]] = {
    "relu6": ((), lambda x: np.clip(x, 0.0, 6.0), lambda x: tf.relu6(x)),
    "leaky_relu": ((), lambda x: np.where(x > 0, x, 0.01 * x), lambda x: tf.leaky_relu(x)),
    "leaky_relu 0.3": ((0.3,), lambda x: np.where(x > 0, x, 0.3 * x), lambda x: tf.leaky_relu(x, 0.3)),
    "threshold": ((0.5, -2.0), lambda x: np.where(x <= 0.5, -2.0, x), lambda x: tf.threshold(x, 0.5, -2.0)),
    "elu": ((), _elu, lambda x: tf.elu(x)),
    "elu 1.5": ((1.5,), lambda x: _elu(x, 1.5), lambda x: tf.elu(x, 1.5)),
    "selu": ((), lambda x: _elu(x, 1.6732632423543772848, 1.0507009873554804934), lambda x: tf.selu(x)),
    "celu": ((), _elu, lambda x: tf.celu(x)),
    "celu 2": ((2,), lambda x: _elu(x, 2.0, 1.0, 0.5), lambda x: tf.celu(x, 2.0)),
    "log_sigmoid": ((), lambda x: sp.log_expit(x), lambda x: tf.logsigmoid(x)),
    "softplus 2.5": ((2.5,), lambda x: _softplus(2.5 * x) / 2.5, lambda x: tf.softplus(x, 2.5, 1e3)),
    "mish": ((), lambda x: x * np.tanh(_softplus(x)), lambda x: tf.mish(x)),
    "softsign": ((), lambda x: x / (1.0 + np.abs(x)), lambda x: tf.softsign(x)),
    "tanhshrink": ((), lambda x: x - np.tanh(x), lambda x: tf.tanhshrink(x)),
    "hardtanh": ((), lambda x: np.clip(x, -1.0, 1.0), lambda x: tf.hardtanh(x)),
    "hardtanh 0.5 2": ((0.5, 2), lambda x: np.clip(x, 0.5, 2.0), lambda x: tf.hardtanh(x, 0.5, 2.0)),
    "hardsigmoid": ((), _hard, lambda x: tf.relu6(x + 3.0) / 6.0),  # its own kernel rounds 1 / 6 to float32
    "hardswish": ((), lambda x: x * _hard(x), lambda x: tf.hardswish(x)),
    "hardshrink": ((), lambda x: np.where(np.abs(x) <= 0.5, 0.0, x), lambda x: tf.hardshrink(x)),
    "hardshrink 1": ((1,), lambda x: np.where(np.abs(x) <= 1.0, 0.0, x), lambda x: tf.hardshrink(x, 1.0)),
    "softshrink": ((), lambda x: x - np.clip(x, -0.5, 0.5), lambda x: tf.softshrink(x)),
    "softshrink 1": ((1,), lambda x: x - np.clip(x, -1.0, 1.0), lambda x: tf.softshrink(x, 1.0)),
}  # fmt: skip

_JUMPS = exact([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 2.0, 7.5, -7.5])
_SMOOTH = ("log_sigmoid", "softplus", "mish", "softsign", "tanhshrink", "celu")


def _is_smooth(name: str) -> bool:
    return name.split()[0] in _SMOOTH


def _call(name: str, options: tuple[Any, ...]) -> Any:
    method = name.split()[0]
    return lambda x: getattr(x, method)(*options)


ELEMENTWISE = [
    Row(name, _call(name, options), reference, (*((normal(*shape),) for shape in SHAPES), (exact(normal(3, 4) * 4.0),)),
        ((SPECIAL,),), torch=gradient, second=_is_smooth(name), noisy=True)
    for name, (options, reference, gradient) in _TABLE.items()
] + [
    Row(f"{name} where the slope jumps", _call(name, options), reference, ((_JUMPS,),), torch=gradient, second=False)
    for name, (options, reference, gradient) in _TABLE.items()
    if not _is_smooth(name)
] + [
    Row(f"{name} far out", _call(name, options), reference, ((exact([-90.0, -30.0, 30.0, 90.0]),),), torch=gradient, second=False)
    for name, (options, reference, gradient) in _TABLE.items()
] + [
    Row("log_sigmoid of minus infinity", lambda x: x.log_sigmoid(), lambda x: sp.log_expit(x), (), ((exact([-INF, INF, NAN]),),)),
    Row("prelu", lambda x, w: x.prelu(w), lambda x, w: np.where(x > 0, x, x * w.reshape(-1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else x * w),
        ((normal(3, 4), normal(4)), (normal(2, 4, 3), normal(4)), (normal(2, 4, 3, 2), normal(4)), (normal(4), normal(4)), (normal(0, 4), normal(4))),
        ((SPECIAL, exact([0.3])),), noisy=True, second=False),
    Row("prelu of one weight", lambda x, w: x.prelu(w), lambda x, w: np.where(x > 0, x, x * w),
        ((normal(3, 4), normal(1)), (normal(), normal()), (normal(2, 3, 4), normal()), (normal(0), normal(1))), torch=lambda x, w: tf.prelu(x, w.reshape(1)), second=False),
]  # fmt: skip


def _halves(x: Any, axis: int) -> Any:
    return np.split(x, 2, axis)


_EVEN = ((normal(3, 4),), (normal(2, 4, 3, 2),), (normal(4),), (normal(3, 0),), (normal(0, 4),))

GATED = [
    row
    for name, reference in {
        "glu": lambda a, b: a * sp.expit(b),
        "swiglu": lambda a, b: a * sp.expit(a) * b,
        "geglu": lambda a, b: a * sp.ndtr(a) * b,
    }.items()
    for row in (
        Row(name, lambda x, n=name: getattr(x, n)(), lambda x, r=reference: r(*_halves(x, -1)), _EVEN, factor=2),
        Row(
            f"{name} of axis 1",
            lambda x, n=name: getattr(x, n)(axis=1),
            lambda x, r=reference: r(*_halves(x, 1)),
            (_EVEN[0], _EVEN[1]),
            factor=2,
        ),
    )
]

ALONG = [
    Row("softmin", lambda x: x.softmin(), lambda x: sp.softmax(-x, axis=-1) if x.size else x, ((normal(3, 4),), (normal(2, 0),), (exact([[1000.0, 0.0]]),))),
    Row("softmin of axis 0", lambda x: x.softmin(0), lambda x: sp.softmax(-x, axis=0), ((normal(3, 4),),)),
]  # fmt: skip

FUNCTIONS = [
    Row("functional activations", lambda x: (
            f.relu(x) + f.leaky_relu(x, 0.2) + f.elu(x) + f.selu(x) + f.celu(x) + f.sigmoid(x) + f.log_sigmoid(x) + f.softplus(x)
            + f.silu(x) + f.gelu(x) + f.mish(x) + f.softsign(x) + f.tanhshrink(x) + f.tanh(x) + f.softmax(x) + f.softmin(x) + f.log_softmax(x)
        ), lambda x: (
            np.maximum(x, 0.0) + np.where(x > 0, x, 0.2 * x) + _elu(x) + _elu(x, 1.6732632423543772848, 1.0507009873554804934) + _elu(x)
            + sp.expit(x) + sp.log_expit(x) + _softplus(x) + x * sp.expit(x) + x * sp.ndtr(x) + x * np.tanh(_softplus(x))
            + x / (1.0 + np.abs(x)) + x - np.tanh(x) + np.tanh(x) + sp.softmax(x, -1) + sp.softmax(-x, -1) + sp.log_softmax(x, -1)
        ), ((normal(3, 4),),), factor=4, second=False),
    Row("functional pieces", lambda x, w: (
            f.relu6(x) + f.threshold(x, 0.1, 0.2) + f.hardtanh(x, -0.7, 0.7) + f.hardsigmoid(x) + f.hardswish(x) + f.hardshrink(x, 0.3)
            + f.softshrink(x, 0.3) + f.prelu(x, w)
        ), lambda x, w: (
            np.clip(x, 0, 6) + np.where(x <= 0.1, 0.2, x) + np.clip(x, -0.7, 0.7) + _hard(x) + x * _hard(x) + np.where(np.abs(x) <= 0.3, 0.0, x)
            + x - np.clip(x, -0.3, 0.3) + np.where(x > 0, x, x * w)
        ), ((normal(3, 4), other(4)),), factor=4, second=False),
    Row("functional gates", lambda x: f.glu(x) + f.swiglu(x, 1) + f.geglu(x, axis=-1), lambda x: (
            (a := x[:, :2]) * sp.expit(b := x[:, 2:]) + a * sp.expit(a) * b + a * sp.ndtr(a) * b
        ), ((normal(3, 4),),), factor=4),
]  # fmt: skip

ROWS: list[Row] = [*ELEMENTWISE, *GATED, *ALONG, *FUNCTIONS]
