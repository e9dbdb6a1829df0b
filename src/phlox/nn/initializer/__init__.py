"""Initializers of parameters. Each is a config, so that it can be saved with the config of a layer."""

from __future__ import annotations

from phlox.nn.initializer.base import Initializer
from phlox.nn.initializer.fans import (
    KaimingNormal,
    KaimingUniform,
    LecunNormal,
    LecunUniform,
    XavierNormal,
    XavierUniform,
)
from phlox.nn.initializer.matrices import Dirac, Eye, Orthogonal, Sparse
from phlox.nn.initializer.plain import Constant, Normal, Ones, TruncatedNormal, Uniform, Zeros
from phlox.nn.initializer.plain import bias_initializer_of as bias_initializer_of

__all__ = [
    "Constant", "Dirac", "Eye", "Initializer", "KaimingNormal", "KaimingUniform", "LecunNormal", "LecunUniform",
    "Normal", "Ones", "Orthogonal", "Sparse", "TruncatedNormal", "Uniform", "XavierNormal", "XavierUniform", "Zeros",
]  # fmt: skip
