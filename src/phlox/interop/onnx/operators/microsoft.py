"""Operators that onnxruntime's own optimizer writes, in the domain `com.microsoft`."""

from __future__ import annotations

from typing import Any

from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import MICROSOFT, operators
from phlox.tensor import Tensor, functional, matmul

X = Tensor[Any, Any, Any]


def _fused_matmul(node: Node, a: X, b: X) -> X:
    y = matmul(a.mT if node.get("transA", 0) else a, b.mT if node.get("transB", 0) else b)
    return y * node.get("alpha", 1.0)


def _fast_gelu(node: Node, x: X, bias: X | None = None) -> X:
    return (x if bias is None else x + bias).gelu(approximate=True)


def _skip_layer_norm(node: Node, x: X, skip: X, gamma: X, beta: X | None = None, bias: X | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = functional.layer_norm(total, gamma, beta, epsilon=node.get("epsilon", 1e-12))
    return y, None, None, total


def _skip_rms_norm(node: Node, x: X, skip: X, gamma: X, bias: X | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    return functional.rms_norm(total, gamma, epsilon=node.get("epsilon", 1e-12)), None, None, total


operators(
    {
        "Gelu": lambda node, x: x.gelu(),
        "BiasGelu": lambda node, x, bias: (x + bias).gelu(),
        "FastGelu": _fast_gelu,
        "QuickGelu": lambda node, x: x * (x * node.get("alpha", 1.702)).sigmoid(),
        "FusedMatMul": _fused_matmul,
        "SkipLayerNormalization": _skip_layer_norm,
        "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    },
    domain=MICROSOFT,
)
