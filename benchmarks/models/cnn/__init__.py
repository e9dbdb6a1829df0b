"""A residual network for small images, as every library here writes it (He et al. 2016, with two blocks a stage).

Images are [batch, height, width, channels], kernels [height, width, inputs, outputs], both as float32 NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

EPSILON, MOMENTUM = 1e-5, 0.1
"""Settings of batch normalization: epsilon, and the fraction of the running statistics that a batch replaces."""


@dataclass(frozen=True)
class Sizes:
    """The sizes, which determine the amount of work."""

    batch: int = 64
    image: int = 32
    """Height and width."""
    channels: int = 3
    stages: tuple[int, ...] = (32, 64, 128)
    """The width of each stage; all except the first begin by halving the image."""
    blocks: int = 2
    """The number of blocks in each stage."""
    classes: int = 10


class Conv(NamedTuple):
    """One convolution, its kernel `name` and the normalization `name.norm` after it; padded by half the kernel."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    image: int
    """The height and width of its output."""


class Block(NamedTuple):
    """relu(norm(second(relu(norm(first(x))))) + shortcut(x)); without a shortcut x itself is added."""

    first: Conv
    second: Conv
    shortcut: Conv | None


def stem(sizes: Sizes) -> Conv:
    """The convolution before the blocks."""
    return Conv("stem", sizes.channels, sizes.stages[0], 3, 1, sizes.image)


def blocks(sizes: Sizes) -> Iterator[Block]:
    """All blocks, from the first to the last."""
    inputs, image = sizes.stages[0], sizes.image
    for stage, width in enumerate(sizes.stages):
        for block in range(sizes.blocks):
            stride = 2 if stage and not block else 1
            image //= stride
            name = f"{stage}.{block}"
            yield Block(
                Conv(f"{name}.first", inputs, width, 3, stride, image),
                Conv(f"{name}.second", width, width, 3, 1, image),
                Conv(f"{name}.shortcut", inputs, width, 1, stride, image) if stride > 1 else None,
            )
            inputs = width


def convolutions(sizes: Sizes) -> Iterator[Conv]:
    """All convolutions."""
    yield stem(sizes)
    for block in blocks(sizes):
        yield from (conv for conv in block if conv is not None)


def weights(sizes: Sizes) -> dict[str, Any]:
    """The parameters by name: `conv`, `conv.norm` (gamma) and `conv.norm_bias` (beta); `head` and `head_bias`."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}

    def draw(shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Any:
        return rng.normal(mean, scale, shape).astype(np.float32)

    for conv in convolutions(sizes):
        fan = conv.kernel**2 * conv.inputs
        found[conv.name] = draw((conv.kernel, conv.kernel, conv.inputs, conv.outputs), (2.0 / fan) ** 0.5)
        last = conv.name.endswith("second")  # starts small, for stable training (Goyal et al. 2017)

        found[f"{conv.name}.norm"] = draw((conv.outputs,), 0.05, 0.25 if last else 1.0)
        found[f"{conv.name}.norm_bias"] = draw((conv.outputs,), 0.1)
    width = sizes.stages[-1]
    return found | {"head": draw((width, sizes.classes), width**-0.5), "head_bias": draw((sizes.classes,), 0.1)}


def batch(sizes: Sizes) -> tuple[Any, Any]:
    """Images f32 [batch, height, width, channels], and their classes int32 [batch]."""
    rng = np.random.default_rng(1)
    images = rng.normal(size=(sizes.batch, sizes.image, sizes.image, sizes.channels)).astype(np.float32)
    return images, rng.integers(0, sizes.classes, sizes.batch).astype(np.int32)


def example(sizes: Sizes) -> Any:
    """One image, as a batch."""
    return batch(sizes)[0][:1].copy()


def flops(sizes: Sizes) -> float:
    """Of the products of a training step: one forwards, two backwards, but no derivative for the images."""
    each = {
        conv.name: 2.0 * conv.image**2 * conv.kernel**2 * conv.inputs * conv.outputs for conv in convolutions(sizes)
    }
    head = 2.0 * sizes.stages[-1] * sizes.classes
    return sizes.batch * (3.0 * (sum(each.values()) + head) - each["stem"])
