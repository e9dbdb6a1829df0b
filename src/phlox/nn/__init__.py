"""Floor 6: layers, losses, initializers."""

from __future__ import annotations

from phlox.nn.activation import Flatten, Gelu, GeluConfig, Relu, Sigmoid, Silu, Tanh
from phlox.nn.attention import attention
from phlox.nn.conv import Conv2d, Conv2dConfig
from phlox.nn.dropout import Dropout, DropoutConfig, dropout
from phlox.nn.embedding import Embedding, EmbeddingConfig
from phlox.nn.initializer import (
    Constant,
    Initializer,
    KaimingNormal,
    KaimingUniform,
    Normal,
    Ones,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
)
from phlox.nn.linear import Linear, LinearConfig
from phlox.nn.loss import cross_entropy_loss, mse_loss
from phlox.nn.norm import LayerNorm, LayerNormConfig
from phlox.nn.pool import AvgPool2d, AvgPool2dConfig, MaxPool2d, MaxPool2dConfig
from phlox.nn.sequential import Sequential
from phlox.tensor import functional

__all__ = [
    "AvgPool2d", "AvgPool2dConfig", "Constant", "Conv2d", "Conv2dConfig", "Dropout", "DropoutConfig", "Embedding",
    "EmbeddingConfig", "Flatten", "Gelu", "GeluConfig", "Initializer", "KaimingNormal", "KaimingUniform", "LayerNorm",
    "LayerNormConfig", "Linear", "LinearConfig", "MaxPool2d", "MaxPool2dConfig", "Normal", "Ones", "Relu", "Sequential",
    "Sigmoid", "Silu", "Tanh", "Uniform", "XavierNormal", "XavierUniform", "Zeros", "attention",
    "cross_entropy_loss", "dropout", "functional", "mse_loss",
]  # fmt: skip
