"""Eager GEMM on a CPU: by oneDNN where MKL, PyTorch's BLAS, has a slower kernel.

oneDNN comes with PyTorch and generates code for the CPU that it finds. On an AMD Zen 5 it takes 0.4 to 0.6 of MKL's
time, from some 64 rows times a weight of 256x256 on. In compiled programs our own kernel does that (`kernels/gemm.py`);
it has to be compiled first, and eager work waits for no compiler.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from functools import cache

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.cpu.features import has_idle_vectors
from phlox.backend.torch.tracer import tracing

FEW = 3
"""Fewer rows are multiplied by MKL, which reads a weight from memory in half of oneDNN's time."""
LEAST = 1 << 22
"""The number of multiplications from which it is faster: oneDNN takes some microseconds to find its code."""


def matmul(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As `torch.matmul`."""
    # A size of a traced tensor must not be read: it would become a condition of the program.
    if type(x) is not torch.Tensor or weight.ndim != 2 or x.ndim < 2:
        return torch.matmul(x, weight)
    if x.numel() * weight.shape[1] >= LEAST and suits(x, weight):
        if x.ndim == 2:
            return _multiply_either_way(x, weight)
        if x.is_contiguous():
            return _multiply(x.view(-1, x.shape[-1]), weight, None).view(*x.shape[:-1], weight.shape[1])
    return torch.matmul(x, weight)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows [rows, depth] times a weight [depth, width], plus a bias [width]: [rows, width]."""
    if type(x) is not torch.Tensor or x.numel() * weight.shape[-1] < LEAST or not suits(x, weight):
        return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
    return _multiply_either_way(x, weight) if bias is None else _multiply(x, weight, bias)


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Are they rows and a weight that oneDNN should multiply: f32 values, on a CPU where it is faster?

    Tracers, tensors in PyTorch's own transformations, and tensors on its tape are left to PyTorch's function, which has
    derivatives.
    """
    if not _is_faster() or x.numel() < FEW * x.shape[-1]:
        return False
    return _is_plain(x) and _is_plain(weight) and x.shape[-1] == weight.shape[0] and not _is_transformed()


def _is_plain(x: torch.Tensor) -> bool:
    """Is it a tensor with f32 values on a CPU, without a history on PyTorch's tape?"""
    return type(x) is torch.Tensor and x.dtype is torch.float32 and x.device.type == "cpu" and not x.requires_grad


def _is_transformed() -> bool:
    if tracing.get() or torch.compiler.is_compiling():
        return True
    return compat.FUNC_LEVEL.value() is not None


@cache
def _is_faster() -> bool:
    return has_idle_vectors() and torch.backends.mkldnn.is_available() and compat.LINEAR.exists


def _multiply_either_way(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.is_contiguous() or x.numel() <= weight.numel():
        return _multiply(x, weight, None)
    # It copies a left factor that is not contiguous; so the smaller factor goes left, and the result is transposed.
    return _multiply(weight.t(), x.t(), None).t().contiguous()


def _multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return compat.LINEAR.value(x, weight.t(), bias, "none", [], "")
