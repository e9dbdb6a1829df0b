"""The residual network in Phlox."""

from __future__ import annotations

from typing import Any

import numpy as np

import phlox as px
from benchmarks.models import cnn
from phlox import nn
from phlox.record import Record


class ConvNorm(px.Module):
    """A convolution without a bias, and batch normalization."""

    def __init__(self, conv: cnn.Conv, device: px.Device) -> None:
        size, stride = conv.kernel, conv.stride
        self.conv = nn.Conv2d(
            conv.inputs, conv.outputs, size, stride=stride, padding=size // 2, bias=False, device=device
        )
        self.norm = nn.BatchNorm(conv.outputs, epsilon=cnn.EPSILON, momentum=cnn.MOMENTUM, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.norm(self.conv(x))


class Block(px.Module):
    """Two convolutions and the shortcut."""

    def __init__(self, block: cnn.Block, device: px.Device) -> None:
        self.first, self.second = ConvNorm(block.first, device), ConvNorm(block.second, device)
        self.shortcut = None if block.shortcut is None else ConvNorm(block.shortcut, device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        y = self.second(self.first(x).relu())
        return (y + (x if self.shortcut is None else self.shortcut(x))).relu()


class ResNet(px.Module):
    """Images [batch, channels, height, width] to logits [batch, classes]."""

    def __init__(self, sizes: cnn.Sizes, device: px.Device) -> None:
        self.stem = ConvNorm(cnn.stem(sizes), device)
        self.blocks = [Block(block, device) for block in cnn.blocks(sizes)]
        self.head = nn.Linear(sizes.stages[-1], sizes.classes, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(axis=(2, 3)))

    def loss(self, x: px.Tensor, y: Any) -> px.Tensor:
        return nn.cross_entropy_loss(self(x), y)


def inputs(x: Any) -> Any:
    """The images in the layout of the model."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def model(sizes: cnn.Sizes, weights: dict[str, Any], device: px.Device) -> ResNet:
    """The model with these weights."""
    found = {"head.weight": weights["head"], "head.bias": weights["head_bias"]}
    for conv in cnn.convolutions(sizes):
        place = conv.name
        if conv.name != "stem":
            stage, block, part = conv.name.split(".")
            place = f"blocks.{int(stage) * sizes.blocks + int(block)}.{part}"
        found[f"{place}.conv.weight"] = weights[conv.name].transpose(3, 2, 0, 1)
        found[f"{place}.norm.gamma"] = weights[f"{conv.name}.norm"]
        found[f"{place}.norm.beta"] = weights[f"{conv.name}.norm_bias"]
        found[f"{place}.norm.running_mean"] = np.zeros(conv.outputs, np.float32)
        found[f"{place}.norm.running_var"] = np.ones(conv.outputs, np.float32)
    net = ResNet(sizes, device)
    net.load_record(Record(found))
    return net
