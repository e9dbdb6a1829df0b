# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The residual network in Flax NNX."""

# Flax says of its arrays that they may be None, and of its cells only what their base has.
# pyright: reportOptionalSubscript=false

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from benchmarks.models import cnn


class ConvNorm(nnx.Module):
    """A convolution without a bias, and batch normalization."""

    def __init__(self, conv: cnn.Conv, rngs: nnx.Rngs) -> None:
        size, stride, pad = conv.kernel, conv.stride, conv.kernel // 2
        self.conv = nnx.Conv(
            conv.inputs, conv.outputs, (size, size), stride, padding=[(pad, pad)] * 2, use_bias=False, rngs=rngs
        )
        self.norm = nnx.BatchNorm(conv.outputs, momentum=1.0 - cnn.MOMENTUM, epsilon=cnn.EPSILON, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class Block(nnx.Module):
    """Two convolutions and the shortcut."""

    def __init__(self, block: cnn.Block, rngs: nnx.Rngs) -> None:
        self.first, self.second = ConvNorm(block.first, rngs), ConvNorm(block.second, rngs)
        self.shortcut = None if block.shortcut is None else ConvNorm(block.shortcut, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.second(nnx.relu(self.first(x)))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nnx.Module):
    """Images [batch, height, width, channels] to logits [batch, classes]."""

    def __init__(self, sizes: cnn.Sizes, rngs: nnx.Rngs) -> None:
        self.stem = ConvNorm(cnn.stem(sizes), rngs)
        self.blocks = nnx.List([Block(block, rngs) for block in cnn.blocks(sizes)])
        self.head = nnx.Linear(sizes.stages[-1], sizes.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


def model(sizes: cnn.Sizes, weights: dict[str, Any]) -> nnx.Module:
    """The model with these weights."""
    net = ResNet(sizes, nnx.Rngs(0))
    layers: list[tuple[Any, Any]] = [(cnn.stem(sizes), net.stem)]
    for block, layer in zip(cnn.blocks(sizes), net.blocks, strict=True):
        layers += zip(block, (layer.first, layer.second, layer.shortcut), strict=True)
    for conv, layer in layers:
        if conv is not None:
            layer.conv.kernel[...] = weights[conv.name]
            layer.norm.scale[...], layer.norm.bias[...] = (
                weights[f"{conv.name}.norm"],
                weights[f"{conv.name}.norm_bias"],
            )
    net.head.kernel[...], net.head.bias[...] = weights["head"], weights["head_bias"]
    return net
