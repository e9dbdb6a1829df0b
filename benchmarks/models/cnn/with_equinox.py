# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The residual network in Equinox: of one image, mapped over the batch under a name for its statistics."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.models import cnn


class ConvNorm(eqx.Module):
    """A convolution without a bias, and batch normalization."""

    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm

    def __init__(self, conv: cnn.Conv, key: Any) -> None:
        size, stride = conv.kernel, conv.stride
        self.conv = eqx.nn.Conv2d(conv.inputs, conv.outputs, size, stride, padding=size // 2, use_bias=False, key=key)
        self.norm = eqx.nn.BatchNorm(conv.outputs, "batch", cnn.EPSILON, momentum=1.0 - cnn.MOMENTUM, mode="batch")

    def __call__(self, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        y, state = self.norm(self.conv(x), state)
        return y.astype(x.dtype), state  # its statistics are f32, and turn bf16 into f32


class Block(eqx.Module):
    """Two convolutions and the shortcut."""

    first: ConvNorm
    second: ConvNorm
    shortcut: ConvNorm | None

    def __init__(self, block: cnn.Block, key: Any) -> None:
        self.first, self.second = ConvNorm(block.first, key), ConvNorm(block.second, key)
        self.shortcut = None if block.shortcut is None else ConvNorm(block.shortcut, key)

    def __call__(self, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        y, state = self.first(x, state)
        y, state = self.second(jax.nn.relu(y), state)
        if self.shortcut is not None:
            x, state = self.shortcut(x, state)
        return jax.nn.relu(y + x), state


class ResNet(eqx.Module):
    """An image [channels, height, width] to logits [classes]."""

    stem: ConvNorm
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, sizes: cnn.Sizes, key: Any) -> None:
        self.stem = ConvNorm(cnn.stem(sizes), key)
        self.blocks = [Block(block, key) for block in cnn.blocks(sizes)]
        self.head = eqx.nn.Linear(sizes.stages[-1], sizes.classes, key=key)

    def __call__(self, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        x, state = self.stem(x, state)
        x = jax.nn.relu(x)
        for block in self.blocks:
            x, state = block(x, state)
        return self.head(x.mean((1, 2))), state


def inputs(x: Any) -> Any:
    """The images in the layout of the model."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def model(sizes: cnn.Sizes, weights: dict[str, Any]) -> tuple[ResNet, Any]:
    """With these weights, and the running statistics."""
    net, state = eqx.nn.make_with_state(ResNet)(sizes, jax.random.key(0))

    def found(net: ResNet) -> list[Any]:
        layers = [net.stem]
        for block in net.blocks:
            layers += [part for part in (block.first, block.second, block.shortcut) if part is not None]
        arrays = [array for layer in layers for array in (layer.conv.weight, layer.norm.weight, layer.norm.bias)]
        return [*arrays, net.head.weight, net.head.bias]

    new: list[Any] = []
    for conv in cnn.convolutions(sizes):
        new += [weights[conv.name].transpose(3, 2, 0, 1), weights[f"{conv.name}.norm"]]
        new.append(weights[f"{conv.name}.norm_bias"])
    new += [weights["head"].T, weights["head_bias"]]
    return eqx.tree_at(found, net, [jnp.asarray(array) for array in new]), state


def forward(module: ResNet, state: Any, x: Any, key: Any, train: bool) -> tuple[jax.Array, Any]:
    """Images [batch, channels, height, width] to logits [batch, classes], and the state after it."""
    module = eqx.nn.inference_mode(module, not train)
    return jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
