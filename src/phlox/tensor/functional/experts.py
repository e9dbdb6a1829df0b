"""Products with the matrices of experts."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend import Float, Int
from phlox.errors import ShapeError
from phlox.tensor.functional.operands import check_kind, compute
from phlox.tensor.tensor import Tensor

__all__ = ["expert_linear"]


def expert_linear(x: Tensor, weight: Tensor, experts: Tensor[Any, Any, Int], bias: Tensor | None = None) -> Tensor:
    """x @ weight[e] + bias[e], where e is the expert of each row of x: [..., outputs].

    On NumPy and in eager code on PyTorch, only the weights of experts that have rows are read. Programs have fixed
    shapes: there all products together take twice the necessary operations at most, or read one matrix for each row
    if there are at most as many rows as experts.

    Args:
        x: Float [..., inputs].
        weight: Float [n, inputs, outputs], the matrices of n experts.
        experts: Int [...], the expert of each row, from 0 to n - 1.
        bias: Float [n, outputs].

    Raises `KindError` and `ShapeError` for operands that do not fit.

    >>> import phlox as px
    >>> weight = px.tensor([[[1.0], [1.0]], [[10.0], [10.0]]])
    >>> px.functional.expert_linear(px.ones((3, 2)), weight, px.tensor([0, 1, 0])).tolist()
    [[2.0], [20.0], [2.0]]
    """
    name = "expert_linear"
    check_kind(name, Float, x=x, weight=weight, bias=bias)
    check_kind(name, Int, experts=experts)
    sizes, (*leading, inputs) = weight.shape, x.shape or (0,)
    if len(sizes) != 3 or sizes[1] != inputs:
        raise ShapeError(f"{name}: x of shape {x.shape} does not fit weight of shape {sizes}, [n, inputs, outputs]")
    if experts.shape != (*leading,):
        raise ShapeError(f"{name}: experts must name one for each row of x of shape {x.shape}, got {experts.shape}")
    if bias is not None and bias.shape != (sizes[0], sizes[2]):
        raise ShapeError(f"{name}: bias of shape {bias.shape} does not fit weight of shape {sizes}")
    rows = math.prod(leading)
    y = compute(name, x.reshape((rows, inputs)), weight, experts.reshape((rows,)))
    y = y.reshape((*leading, sizes[2]))
    return y if bias is None else y + bias.take(experts)
