"""Products of matrices."""

from __future__ import annotations

from typing import Any

from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, einsum, linalg, matmul

X = Tensor[Any, Any, Any]


def _gemm(node: Node, a: X, b: X, c: X | None = None) -> X:
    y = matmul(a.mT if node.get("transA", 0) else a, b.mT if node.get("transB", 0) else b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    y = y if alpha == 1.0 else y * alpha
    return y if c is None or beta == 0.0 else y + (c if beta == 1.0 else c * beta)


def _einsum(node: Node, *xs: X) -> X:
    equation = node.get("equation").replace(" ", "")
    return einsum(equation, *xs)


operators(
    {
        "MatMul": lambda node, a, b: matmul(a, b),
        "Gemm": _gemm,
        "Einsum": _einsum,
        "Det": lambda node, x: linalg.det(x),
    }
)
