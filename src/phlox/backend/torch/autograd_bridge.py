"""PyTorch's own autograd for one operation, for kernels whose derivatives are available in no other way."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable

import torch

from phlox.backend.contract.types import Array, Gradients, Needed


def forward(fn: Callable[..., Array], *arrays: Array) -> tuple[Array, tuple[Array, tuple[Array, ...]]]:
    """The result of `fn`, and the values for `backward`: the result with its autograd graph, and the leaves of that."""
    with torch.enable_grad():
        leaves = tuple(array.detach().requires_grad_() for array in arrays)
        y = fn(*leaves)
    return y.detach(), (y, leaves)


def backward(saved: tuple[Array, tuple[Array, ...]], g: Array, needed: Needed) -> Gradients:
    """The gradients towards the arrays that are `needed`."""
    y, leaves = saved
    wanted = [leaf for leaf, want in zip(leaves, needed, strict=True) if want]
    found = iter(torch.autograd.grad(y, wanted, g, retain_graph=True) if wanted else ())
    return tuple(next(found) if want else None for want in needed)
