"""PyTorch's own autograd for one operation, for kernels whose derivatives are available in no other way."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable

import torch

from phlox.backend.contract.types import Array, Gradients, Needed


def forward(fn: Callable[..., Array], *arrays: Array) -> tuple[Array, tuple[Array, tuple[Array, ...]]]:
    """The result of `fn`, and the values for `backward`: the result with its autograd graph, and its leaves."""
    with torch.enable_grad():
        leaves = tuple(array.detach().requires_grad_() for array in arrays)
        y = fn(*leaves)
    return y.detach(), (y, leaves)


def backward(saved: tuple[Array, tuple[Array, ...]], g: Array, needed: Needed) -> Gradients:
    """The gradients of the arrays that are `needed`."""
    y, leaves = saved
    needed_leaves = [leaf for leaf, is_needed in zip(leaves, needed, strict=True) if is_needed]
    gradients = iter(torch.autograd.grad(y, needed_leaves, g, retain_graph=True) if needed_leaves else ())
    return tuple(next(gradients) if is_needed else None for is_needed in needed)
