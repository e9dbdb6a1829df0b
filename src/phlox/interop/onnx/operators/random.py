"""Random draws, from Phlox's ambient stream: `phlox.random.seed` decides, and not the seed of a node."""

from __future__ import annotations

from typing import Any

from phlox.interop.onnx.elements import kind_of
from phlox.interop.onnx.graph import Run
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.shape import checked_size
from phlox.interop.onnx.registry import operators
from phlox.random import categorical, normal, uniform
from phlox.tensor import Tensor

X = Tensor[Any, Any, Any]


def _normal(node: Node, run: Run, values: dict[str, Any]) -> X:
    shape = checked_size("RandomNormal", node.get("shape"))
    return normal(shape, node.get("mean", 0.0), node.get("scale", 1.0), device=run.device)


def _uniform(node: Node, run: Run, values: dict[str, Any]) -> X:
    shape = checked_size("RandomUniform", node.get("shape"))
    return uniform(shape, node.get("low", 0.0), node.get("high", 1.0), device=run.device)


def _bernoulli(node: Node, x: X) -> X:
    drawn = uniform(x.shape, device=x.device) < x
    kind = kind_of(node.element) if node.element else x.kind
    return getattr(drawn, kind.name)()


def _multinomial(node: Node, x: X) -> X:
    count = node.get("sample_size", 1)
    return categorical(x.expand_dims(1).broadcast_to((x.shape[0], count, x.shape[1])))


operators({"RandomNormal": _normal, "RandomUniform": _uniform}, own=True)
operators(
    {
        "RandomNormalLike": lambda node, x: normal(
            x.shape, node.get("mean", 0.0), node.get("scale", 1.0), device=x.device
        ),
        "RandomUniformLike": lambda node, x: uniform(
            x.shape, node.get("low", 0.0), node.get("high", 1.0), device=x.device
        ),
        "Bernoulli": _bernoulli,
        "Multinomial": _multinomial,
    }
)
