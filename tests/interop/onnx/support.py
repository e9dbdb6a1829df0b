"""Small ONNX models, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Sequence[int | str] | None, element: int = FLOAT) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, element, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 18,
    functions: Sequence[Any] = (),
    more: Sequence[Any] = (),
) -> Any:
    """A model of nodes, with initializers."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "made", list(inputs), list(outputs), initializers)
    sets = [helper.make_opsetid("", opset), *more]
    return helper.make_model(graph, opset_imports=sets, functions=list(functions), ir_version=9)


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """A node."""
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed floats."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mlp() -> Any:
    """Two layers, whose shapes are computed in the graph: x [batch, 2, 3] -> y [batch, 4]."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Unsqueeze", ["batch", "first"], ["batches"]),
        node("Concat", ["batches", "rest"], ["flat"], axis=0),
        node("Reshape", ["x", "flat"], ["rows"]),
        node("Gemm", ["rows", "up.weight", "up.bias"], ["h"], transB=1),
        node("Relu", ["h"], ["a"]),
        node("MatMul", ["a", "onnx::MatMul_7"], ["m"], name="/down/MatMul"),
        node("Mul", ["m", "scale"], ["y"]),
    ]
    weights = {
        "zero": np.array(0), "first": np.array([0]), "rest": np.array([6]),
        "up.weight": normal(5, 6), "up.bias": normal(5),
        "onnx::MatMul_7": normal(5, 4, seed=1), "scale": np.array(0.5, np.float32),
    }  # fmt: skip
    return model(nodes, [value("x", ["batch", 2, 3])], [value("y", ["batch", 4])], weights)


def mlp_by_hand(x: np.ndarray) -> np.ndarray:
    """What it computes."""
    hidden = np.maximum(x.reshape(len(x), 6) @ normal(5, 6).T + normal(5), 0.0)
    return hidden @ normal(5, 4, seed=1) * 0.5
