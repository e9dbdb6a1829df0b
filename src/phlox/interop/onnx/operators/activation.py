"""Activations."""

from __future__ import annotations

import math
from typing import Any

from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, one_hot, where

X = Tensor[Any, Any, Any]

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _celu(node: Node, x: X) -> X:
    return x.celu(node.get("alpha", 1.0))


def _elu(node: Node, x: X) -> X:
    return x.elu(node.get("alpha", 1.0))


def _selu(node: Node, x: X) -> X:
    return x.elu(node.get("alpha", SELU_ALPHA)) * node.get("gamma", SELU_GAMMA)


def _prelu(node: Node, x: X, slope: X) -> X:
    return where(x < (0.0 if x.kind.name == "float" else 0), x * slope, x)


def _shrink(node: Node, x: X) -> X:
    bound, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    whole = x.kind.name == "int"
    y = x.float() if whole else x
    y = where(y < -bound, y + bias, where(y > bound, y - bias, 0.0))
    return y.int() if whole else y


def _flat(x: X, axis: int) -> X:
    """Before opset 13: over all axes from one on."""
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _hardmax(x: X, axis: int) -> X:
    return one_hot(x.argmax(axis=axis), x.shape[axis]).moveaxis(-1, axis)


def _hard_sigmoid(node: Node, x: X) -> X:
    return (x * node.get("alpha", 0.2) + node.get("beta", 0.5)).clip(0.0, 1.0)


def _thresholded(node: Node, x: X) -> X:
    return where(x > node.get("alpha", 1.0), x, 0.0)


def _gelu(node: Node, x: X) -> X:
    return x.gelu(approximate=node.get("approximate", "none") == "tanh")


def _swish(node: Node, x: X) -> X:
    alpha = node.get("alpha", 1.0)
    return x.silu() if alpha == 1.0 else x * (x * alpha).sigmoid()


operators(
    {
        "Relu": lambda node, x: x.relu() if x.kind.name == "float" else x.maximum(0),
        "LeakyRelu": lambda node, x: x.leaky_relu(node.get("alpha", 0.01)),
        "PRelu": _prelu,
        "Elu": _elu,
        "Celu": _celu,
        "Selu": _selu,
        "Gelu": _gelu,
        "Mish": lambda node, x: x.mish(),
        "Swish": _swish,
        "Sigmoid": lambda node, x: x.sigmoid(),
        "HardSigmoid": _hard_sigmoid,
        "HardSwish": lambda node, x: x * (x * (1 / 6) + 0.5).clip(0.0, 1.0),
        "Tanh": lambda node, x: x.tanh(),
        "Softplus": lambda node, x: x.softplus(),
        "Softsign": lambda node, x: x.softsign(),
        "ThresholdedRelu": _thresholded,
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
