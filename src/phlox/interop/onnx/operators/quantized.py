"""Integers with a scale and a zero point in place of floats."""

from __future__ import annotations

from typing import Any

from phlox.interop.onnx.elements import INTEGERS, SMALL_FLOATS, UINT8, limits, rounded
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.convolution import conv
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, matmul

X = Tensor[Any, Any, Any]


def _fitted(node: Node, x: X, scale: X) -> X:
    """A scale (or zero point) for all of x, or for each index or block of an axis, such that it broadcasts to x."""
    if scale.ndim == 0 or scale.size == 1:
        return scale.reshape(())
    axis: int = node.get("axis", 1) % x.ndim
    if scale.ndim == 1 and not node.get("block_size", 0):
        return scale.reshape(tuple(-1 if dim == axis else 1 for dim in range(x.ndim)))
    block: int = node.get("block_size", 0) or -(-x.shape[axis] // scale.shape[axis])
    whole = scale.repeat(block, axis)
    return whole[tuple(slice(0, x.shape[axis]) if dim == axis else slice(None) for dim in range(x.ndim))]


def _saturated(x: X, element: int) -> X:
    low, high = limits(element)
    return x.clip(float(low), float(high)).int()


def _quantize(node: Node, x: X, scale: X, zero: X | None = None) -> X:
    y = x.float() / _fitted(node, x, scale)
    element = node.element or UINT8
    if element in SMALL_FLOATS:
        return rounded(y, element, saturate=bool(node.get("saturate", 1)))
    y = y.round()
    return _saturated(y if zero is None else y + _fitted(node, x, zero).float(), element)


def _dequantize(node: Node, x: X, scale: X, zero: X | None = None) -> X:
    if zero is not None and node.type_of(0) in INTEGERS:
        x = x - _fitted(node, x, zero)
    return x.float() * _fitted(node, x, scale)


def _by_rows(zero: X) -> X:
    return zero.expand_dims(-1) if zero.ndim == 1 and zero.size > 1 else zero


def _centred(x: X, zero: X | None, *, rows: bool = False) -> X:
    return x if zero is None else x - (_by_rows(zero) if rows else zero)


def _matmul_integer(node: Node, a: X, b: X, a_zero: X | None = None, b_zero: X | None = None) -> X:
    return matmul(_centred(a, a_zero, rows=True), _centred(b, b_zero))


def _qlinear_matmul(node: Node, a: X, a_scale: X, a_zero: X, b: X, b_scale: X, b_zero: X, scale: X, zero: X) -> X:
    exact = matmul(_centred(a, a_zero, rows=True), _centred(b, b_zero)).float()
    y = exact * _by_rows(a_scale) * b_scale / scale
    return _saturated(y.round() + zero.float(), node.element)


def _qlinear_conv(
    node: Node,
    x: X,
    x_scale: X,
    x_zero: X,
    weight: X,
    w_scale: X,
    w_zero: X,
    scale: X,
    zero: X,
    bias: X | None = None,
) -> X:
    column = (-1, *(1,) * (weight.ndim - 1))
    exact = conv(node, (x - x_zero).float(), (weight - w_zero.reshape(column)).float()).round()
    row = (-1, *(1,) * (weight.ndim - 2))
    if bias is not None:
        exact = exact + bias.float().reshape(row)
    y = exact * (x_scale * w_scale.reshape(row)) / scale
    return _saturated(y.round() + zero.float(), node.element)


operators(
    {
        "QuantizeLinear": _quantize,
        "DequantizeLinear": _dequantize,
        "MatMulInteger": _matmul_integer,
        "QLinearMatMul": _qlinear_matmul,
        "QLinearConv": _qlinear_conv,
    }
)
