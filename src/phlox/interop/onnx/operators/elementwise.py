"""Elementwise operators: arithmetic, functions, comparisons, logic, bits, and changes of type."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from phlox.backend import Bool, Float, Int
from phlox.interop.onnx.elements import BOOL, FLOAT, INT64, STRING, cast, host, values_of, wrapped
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, where

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


def _clip_6(node: Node, x: X) -> X:
    return x.clip(node.get("min"), node.get("max"))


def _is_inf(node: Node, x: X) -> X:
    found = x.isinf()
    if not node.get("detect_negative", 1):
        found = found & (x > 0.0)
    return found & (x < 0.0) if not node.get("detect_positive", 1) else found


def _shift(node: Node, x: X, y: X) -> X:
    return wrapped(x << y, node.element) if node.get("direction") == "LEFT" else x >> y


def _where(node: Node, condition: X, x: X, y: X) -> X:
    return where(condition, x, y)


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
        "Clip": _clip_6,
        "Abs": lambda node, x: x.abs(),
        "Sign": lambda node, x: x.sign(),
        "Ceil": lambda node, x: x.ceil(),
        "Floor": lambda node, x: x.floor(),
        "Round": lambda node, x: x.round(),
        "Reciprocal": lambda node, x: x.reciprocal(),
        "Sqrt": lambda node, x: x.sqrt(),
        "Exp": lambda node, x: x.exp(),
        "Log": lambda node, x: x.log(),
        "Erf": lambda node, x: x.erf(),
        "Sin": lambda node, x: x.sin(),
        "Cos": lambda node, x: x.cos(),
        "Tan": lambda node, x: x.tan(),
        "Asin": lambda node, x: x.asin(),
        "Acos": lambda node, x: x.acos(),
        "Atan": lambda node, x: x.atan(),
        "Sinh": lambda node, x: x.sinh(),
        "Cosh": lambda node, x: x.cosh(),
        "Asinh": lambda node, x: x.asinh(),
        "Acosh": lambda node, x: x.acosh(),
        "Atanh": lambda node, x: x.atanh(),
        "IsNaN": lambda node, x: x.isnan(),
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
        "Where": _where,
        "Cast": lambda node, x: _cast(node, x, node.element),
        "CastLike": lambda node, x, like: _cast(node, x, node.element or _BY_KIND[like.kind]),
    }
)
operators({"Clip": _clip}, since=11)
