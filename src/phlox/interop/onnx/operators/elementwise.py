"""Elementwise operators: arithmetic, functions, activations, comparisons, logic, bits, and changes of type."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from phlox.backend import Bool, Float, Int
from phlox.interop.onnx.elements import BOOL, FLOAT, INT64, STRING, cast, host, values_of, wrapped
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, one_hot, where

X = Tensor[Any, Any, Any]


def _whole(written: Callable[[Any], Any] | Callable[[Any, Any], Any]) -> Callable[..., X]:
    """Arithmetic whose integers wrap around in narrow types."""

    compute: Any = written

    def computed(node: Node, *operands: X) -> X:
        y: X = compute(*operands)
        return wrapped(y, node.element) if y.kind is Int else y

    return computed


def _div(x: X, y: X) -> X:
    if x.kind is Float:
        return x / y
    quotient = x // y
    return where((quotient < 0) & (quotient * y != x), quotient + 1, quotient)  # towards zero


def _mod(node: Node, x: X, y: X) -> X:
    if x.kind is Float:
        return x.fmod(y) if node.get("fmod", 0) else x % y
    return wrapped(x - y * _div(x, y) if node.get("fmod", 0) else x % y, node.element)


def _pow(node: Node, x: X, y: X) -> X:
    if x.kind is Int and y.kind is Float:
        return wrapped((x.float() ** y).int(), node.element)
    return x ** (y.float() if x.kind is Float and y.kind is Int else y)


def _clip(node: Node, x: X, low: X | None = None, high: X | None = None) -> X:
    if low is not None:
        x = x.maximum(low)
    return x if high is None else x.minimum(high)


def _is_inf(node: Node, x: X) -> X:
    is_infinite = x.isinf()
    if not node.get("detect_negative", 1):
        is_infinite = is_infinite & (x > 0.0)
    return is_infinite & (x < 0.0) if not node.get("detect_positive", 1) else is_infinite


def _shift(node: Node, x: X, y: X) -> X:
    return wrapped(x << y, node.element) if node.get("direction") == "LEFT" else x >> y


def _sum(node: Node, *xs: X) -> X:
    return reduce(lambda x, y: x + y, xs)


def _mean(node: Node, *xs: X) -> X:
    return _sum(node, *xs) * (1.0 / len(xs))


def _max(node: Node, *xs: X) -> X:
    return reduce(lambda x, y: x.maximum(y), xs)


def _min(node: Node, *xs: X) -> X:
    return reduce(lambda x, y: x.minimum(y), xs)


def _equal(node: Node, x: Any, y: Any) -> Any:
    return host(np.asarray(x == y, dtype=bool)) if isinstance(x, np.ndarray) else x == y


_BY_KIND = {Float: FLOAT, Int: INT64, Bool: BOOL}


def _cast(node: Node, x: Any, element: int) -> Any:
    if not hasattr(x, "primitive"):  # an array of text
        return x if element == STRING else cast(host(np.vectorize(_number, otypes=[np.float64])(x)), element)
    if element == STRING:
        return np.vectorize(_text, otypes=[object])(values_of(x))
    return cast(x, element, saturate=bool(node.get("saturate", 1)), round_mode=node.get("round_mode", "up"))


def _number(text: Any) -> float:
    return float(str(text))


def _text(value: Any) -> str:
    return str(np.float32(value)) if value.dtype.kind == "f" else str(value.item())


_METHODS = (
    "Abs", "Sign", "Ceil", "Floor", "Round", "Reciprocal", "Sqrt", "Exp", "Log", "Erf", "IsNaN", "Sin", "Cos", "Tan",
    "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Sigmoid", "Tanh", "Softplus", "Softsign",
    "Mish",
)  # fmt: skip
"""Operators that are methods of a tensor, of the same names in lower case."""


def _method(name: str) -> Callable[..., X]:
    def computed(node: Node, x: X) -> X:
        return getattr(x, name)()

    return computed


operators({name: _method(name.lower()) for name in _METHODS})
operators(
    {
        "Add": _whole(lambda x, y: x + y),
        "Sub": _whole(lambda x, y: x - y),
        "Mul": _whole(lambda x, y: x * y),
        "Div": _whole(_div),
        "Neg": _whole(lambda x: -x),
        "Mod": _mod,
        "Pow": _pow,
        "Sum": _sum,
        "Mean": _mean,
        "Max": _max,
        "Min": _min,
        "Clip": lambda node, x: x.clip(node.get("min"), node.get("max")),
        "IsInf": _is_inf,
        "Equal": _equal,
        "Less": lambda node, x, y: x < y,
        "LessOrEqual": lambda node, x, y: x <= y,
        "Greater": lambda node, x, y: x > y,
        "GreaterOrEqual": lambda node, x, y: x >= y,
        "And": lambda node, x, y: x & y,
        "Or": lambda node, x, y: x | y,
        "Xor": lambda node, x, y: x ^ y,
        "Not": lambda node, x: ~x,
        "BitwiseAnd": lambda node, x, y: x & y,
        "BitwiseOr": lambda node, x, y: x | y,
        "BitwiseXor": lambda node, x, y: x ^ y,
        "BitwiseNot": _whole(lambda x: ~x),
        "BitShift": _shift,
        "Where": lambda node, condition, x, y: where(condition, x, y),
        "Cast": lambda node, x: _cast(node, x, node.element),
        "CastLike": lambda node, x, like: _cast(node, x, node.element or _BY_KIND[like.kind]),
    }
)
operators({"Clip": _clip}, since=11)


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _shrink(node: Node, x: X) -> X:
    bound, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    whole = x.kind.name == "int"
    y = x.float() if whole else x
    y = where(y < -bound, y + bias, where(y > bound, y - bias, 0.0))
    return y.int() if whole else y


def _flat(x: X, axis: int) -> X:
    """Before opset 13: the axes from `axis` on as one, over which softmax goes."""
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _hardmax(x: X, axis: int) -> X:
    return one_hot(x.argmax(axis=axis), x.shape[axis]).moveaxis(-1, axis)


def _swish(node: Node, x: X) -> X:
    alpha = node.get("alpha", 1.0)
    return x.silu() if alpha == 1.0 else x * (x * alpha).sigmoid()


operators(
    {
        "Relu": lambda node, x: x.relu() if x.kind.name == "float" else x.maximum(0),
        "LeakyRelu": lambda node, x: x.leaky_relu(node.get("alpha", 0.01)),
        "PRelu": lambda node, x, slope: where(x < (0.0 if x.kind.name == "float" else 0), x * slope, x),
        "Elu": lambda node, x: x.elu(node.get("alpha", 1.0)),
        "Celu": lambda node, x: x.celu(node.get("alpha", 1.0)),
        "Selu": lambda node, x: x.elu(node.get("alpha", SELU_ALPHA)) * node.get("gamma", SELU_GAMMA),
        "Gelu": lambda node, x: x.gelu(approximate=node.get("approximate", "none") == "tanh"),
        "Swish": _swish,
        "HardSigmoid": lambda node, x: (x * node.get("alpha", 0.2) + node.get("beta", 0.5)).clip(0.0, 1.0),
        "HardSwish": lambda node, x: x * (x * (1 / 6) + 0.5).clip(0.0, 1.0),
        "ThresholdedRelu": lambda node, x: where(x > node.get("alpha", 1.0), x, 0.0),
        "Shrink": _shrink,
        "Softmax": lambda node, x: _flat(x, node.get("axis", 1)).softmax(-1).reshape(x.shape),
        "LogSoftmax": lambda node, x: _flat(x, node.get("axis", 1)).log_softmax(-1).reshape(x.shape),
        "Hardmax": lambda node, x: _hardmax(_flat(x, node.get("axis", 1)), 1).reshape(x.shape),
    }
)
operators(
    {
        "Softmax": lambda node, x: x.softmax(node.get("axis", -1)),
        "LogSoftmax": lambda node, x: x.log_softmax(node.get("axis", -1)),
        "Hardmax": lambda node, x: _hardmax(x, node.get("axis", -1)),
    },
    since=13,
)
