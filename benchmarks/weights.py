# pyright: reportMissingImports=false
"""The weights of a transformer, about a hundred tensors, to save and load, as arrays and as a module."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

import phlox as px
from phlox import nn
from phlox.module import Param

VOCABULARY, BLOCKS = 50304, 8
WIDTH, SMALL_WIDTH, QUICK_WIDTH = 1408, 384, 96

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a GPT: 1.05 GB in float32 for a width of 1408, 134 MB for one of 384, 23 MB for one of 96."""
    block = {
        "attention.norm": (width,), "attention.norm_bias": (width,),
        "attention.qkv": (width, 3 * width), "attention.qkv_bias": (3 * width,),
        "attention.out": (width, width), "attention.out_bias": (width,),
        "mlp.norm": (width,), "mlp.norm_bias": (width,),
        "mlp.up": (width, 4 * width), "mlp.up_bias": (4 * width,),
        "mlp.down": (4 * width, width), "mlp.down_bias": (width,),
    }  # fmt: skip
    blocks = {f"blocks.{i}.{name}": shape for i in range(BLOCKS) for name, shape in block.items()}
    return {"embedding": (VOCABULARY, width), **blocks, "norm": (width,), "norm_bias": (width,)}


def arrays(width: int) -> Arrays:
    """Random weights."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) * np.float32(0.02) for name, shape in shapes(width).items()}


class Weights(px.Module):
    """A module with parameters of these shapes, which have no values yet."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], device: px.Device) -> None:
        self.w = {name: Param.deferred(shape, nn.Zeros(), device=device) for name, shape in shapes.items()}


def module_of(arrays: Arrays, device: px.Device) -> Weights:
    """A module with these values."""
    model = Weights({name: array.shape for name, array in arrays.items()}, device)
    for name, array in arrays.items():
        model.w[name].set(px.tensor(array, device=device))
    return model
