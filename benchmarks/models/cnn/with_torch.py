"""The residual network in PyTorch, in its layout for images on CPUs, `channels_last`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.models import cnn


class ConvNorm(nn.Module):
    """A convolution without a bias, and batch normalization."""

    def __init__(self, conv: cnn.Conv) -> None:
        super().__init__()
        size, stride = conv.kernel, conv.stride
        self.conv = nn.Conv2d(conv.inputs, conv.outputs, size, stride=stride, padding=size // 2, bias=False)
        self.norm = nn.BatchNorm2d(conv.outputs, eps=cnn.EPSILON, momentum=cnn.MOMENTUM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class Block(nn.Module):
    """Two convolutions and the shortcut."""

    def __init__(self, block: cnn.Block) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(block.first), ConvNorm(block.second)
        self.shortcut = nn.Identity() if block.shortcut is None else ConvNorm(block.shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.relu(self.first(x), inplace=True))
        return F.relu(y + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """Images [batch, channels, height, width] to logits [batch, classes]."""

    def __init__(self, sizes: cnn.Sizes) -> None:
        super().__init__()
        self.stem = ConvNorm(cnn.stem(sizes))
        self.blocks = nn.Sequential(*[Block(block) for block in cnn.blocks(sizes)])
        self.head = nn.Linear(sizes.stages[-1], sizes.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.stem(x), inplace=True))
        return self.head(x.mean((2, 3)))


def inputs(x: Any) -> Any:
    """The images as the model takes them: a view, which as a tensor is `channels_last`."""
    return np.moveaxis(x, -1, 1)


def model(sizes: cnn.Sizes, weights: dict[str, Any]) -> ResNet:
    """The model with these weights."""
    net = ResNet(sizes)
    layers = {"stem": net.stem}
    for at, block in enumerate(net.blocks):
        name = f"{at // sizes.blocks}.{at % sizes.blocks}"
        layers |= {f"{name}.{part}": layer for part, layer in block.named_children()}
    with torch.no_grad():
        for name, layer in layers.items():
            if isinstance(layer, ConvNorm):
                layer.conv.weight.copy_(torch.from_numpy(weights[name].transpose(3, 2, 0, 1)))
                layer.norm.weight.copy_(torch.from_numpy(weights[f"{name}.norm"]))
                layer.norm.bias.copy_(torch.from_numpy(weights[f"{name}.norm_bias"]))
        net.head.weight.copy_(torch.from_numpy(weights["head"].T))
        net.head.bias.copy_(torch.from_numpy(weights["head_bias"]))
    return net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
