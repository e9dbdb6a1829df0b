"""Floor 3: the one `Tensor`, and the functions that make and combine tensors."""

from __future__ import annotations

from phlox.tensor import functional
from phlox.tensor.creation import arange, eye, full, full_like, one_hot, ones, ones_like, tensor, zeros, zeros_like
from phlox.tensor.functions import concat, lift, matmul, maximum, minimum, stack, where
from phlox.tensor.gradients import Gradients
from phlox.tensor.tensor import Tensor

__all__ = [
    "Gradients", "Tensor", "arange", "concat", "eye", "full", "full_like", "functional", "lift", "matmul", "maximum",
    "minimum", "one_hot", "ones", "ones_like", "stack", "tensor", "where", "zeros", "zeros_like",
]  # fmt: skip
