"""Normalisation, dropout and random draws.

Draws come from Phlox's ambient stream: `phlox.random.seed` decides, and not the seed of a node.
"""

from __future__ import annotations

from typing import Any

from phlox.interop.onnx.elements import kind_of
from phlox.interop.onnx.graph import Run
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.shape import checked_size
from phlox.interop.onnx.registry import Array, operators
from phlox.random import bernoulli, categorical, normal, uniform
from phlox.tensor import Tensor, functional, ones, where, zeros_like

X = Tensor[Any, Any, Any]


def _batch_norm(node: Node, x: X, gamma: X, beta: X, mean: X, variance: X) -> Any:
    epsilon = node.get("epsilon", 1e-5)
    if not node.get("training_mode", 0):
        return functional.batch_norm(x, mean, variance, gamma, beta, epsilon=epsilon)
    axes = (0, *range(2, x.ndim))
    now, spread = x.mean(axes), x.var(axes)
    momentum = node.get("momentum", 0.9)
    y = functional.batch_norm(x, now, spread, gamma, beta, epsilon=epsilon)
    return y, mean * momentum + now * (1.0 - momentum), variance * momentum + spread * (1.0 - momentum)


def _layer_norm(node: Node, x: X, gamma: X, beta: X | None = None) -> Any:
    axis = node.get("axis", -1) % x.ndim
    epsilon = node.get("epsilon", 1e-5)
    count = x.ndim - axis
    usual = gamma.shape == x.shape[axis:] and (beta is None or beta.shape == gamma.shape)
    if usual and not node.wants(1) and not node.wants(2):
        return functional.layer_norm(x, gamma, beta, axes=count, epsilon=epsilon)
    axes = tuple(range(axis, x.ndim))
    mean = x.mean(axes, keepdims=True)
    inverse = (x.var(axes, keepdims=True) + epsilon).rsqrt()
    y = (x - mean) * inverse * gamma
    return (y if beta is None else y + beta), mean, inverse


def _rms_norm(node: Node, x: X, gamma: X) -> X:
    axis = node.get("axis", -1) % x.ndim
    epsilon = node.get("epsilon", 1e-5)
    if gamma.shape == x.shape[axis:]:
        return functional.rms_norm(x, gamma, axes=x.ndim - axis, epsilon=epsilon)
    return x * (x.square().mean(tuple(range(axis, x.ndim)), keepdims=True) + epsilon).rsqrt() * gamma


def _instance_norm(node: Node, x: X, gamma: X, beta: X) -> X:
    return functional.instance_norm(x, gamma, beta, epsilon=node.get("epsilon", 1e-5))


def _group_norm(node: Node, x: X, gamma: X, beta: X) -> X:
    groups = node.get("num_groups")
    if node.version < 21 and gamma.shape[0] != x.shape[1]:  # a scale for each group
        each = x.shape[1] // groups
        gamma, beta = gamma.repeat(each), beta.repeat(each)
    return functional.group_norm(x, groups, gamma, beta, epsilon=node.get("epsilon", 1e-5))


def _lrn(node: Node, x: X) -> X:
    size = node.get("size")
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = x.square().pad(((0, 0), (before, after), *((0, 0) for _ in x.shape[2:])))
    total = sum((squares[:, offset : offset + x.shape[1]] for offset in range(1, size)), squares[:, : x.shape[1]])
    base = total * (node.get("alpha", 1e-4) / size) + node.get("bias", 1.0)
    return x / base ** node.get("beta", 0.75)


def _lp_norm(node: Node, x: X) -> X:
    axis = node.get("axis", -1)
    size = x.norm(float(node.get("p", 2)), axis, keepdims=True)
    return where(size == 0.0, zeros_like(x), x / where(size == 0.0, 1.0, size))


def _mean_variance(node: Node, x: X) -> X:
    axes = tuple(node.get("axes") or (0, 2, 3))
    centred = x - x.mean(axes, keepdims=True)
    return centred / (centred.square().mean(axes, keepdims=True).sqrt() + 1e-9)


def _dropout(node: Node, x: X, ratio: Array | None = None, training: Array | None = None) -> Any:
    rate = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if training is None or not bool(training.reshape(-1)[0]) or rate == 0.0:
        return x, ones(x.shape, device=x.device).bool()
    kept = bernoulli(x.shape, 1.0 - rate, device=x.device)
    return where(kept, x * (1.0 / (1.0 - rate)), 0.0), kept


operators(
    {
        "BatchNormalization": _batch_norm,
        "LayerNormalization": _layer_norm,
        "RMSNormalization": _rms_norm,
        "InstanceNormalization": _instance_norm,
        "GroupNormalization": _group_norm,
        "LRN": _lrn,
        "LpNormalization": _lp_norm,
        "MeanVarianceNormalization": _mean_variance,
        "Dropout": lambda node, x: (x, ones(x.shape, device=x.device).bool()),
    }
)
operators({"Dropout": _dropout}, since=12)


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
