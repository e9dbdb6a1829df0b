"""Phlox: deep learning on swappable backends, with modules that are PyTrees."""

from __future__ import annotations

from phlox import autodiff, backend, config, errors, module, nn, optim, random, record, transform
from phlox.backend import Bool, Device, Float, Int, default_device
from phlox.config import Config, config_of
from phlox.module import GradientsParams, Module, Param
from phlox.tensor import (
    Gradients,
    Tensor,
    arange,
    concat,
    eye,
    full,
    full_like,
    functional,
    lift,
    matmul,
    maximum,
    minimum,
    one_hot,
    ones,
    ones_like,
    stack,
    tensor,
    where,
    zeros,
    zeros_like,
)
from phlox.transform import compile, grad, value_and_grad
from phlox.version import __version__

__all__ = [
    "Bool", "Config", "Device", "Float", "Gradients", "GradientsParams", "Int", "Module", "Param", "Tensor",
    "__version__", "arange", "autodiff", "backend", "compile", "concat", "config", "config_of", "default_device",
    "errors", "eye", "full", "full_like", "functional", "grad", "lift", "matmul", "maximum", "minimum", "module", "nn",
    "one_hot", "ones", "ones_like", "optim", "random", "record", "stack", "tensor", "transform", "value_and_grad",
    "where", "zeros", "zeros_like",
]  # fmt: skip
