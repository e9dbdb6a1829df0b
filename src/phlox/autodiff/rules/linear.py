"""Products: of matrices, and the three maps of a convolution, each of which is bilinear."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Result, Rule, sum_to
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array


def _transposed(B: Backend, x: Array) -> Array:
    rank = len(B.shape(x))
    return B.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))


def _matmul(B: Backend, saved: Any, g: Array, needed: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x, y = saved
    dx = sum_to(B, B.float_matmul(g, _transposed(B, y)), B.shape(x)) if needed[0] else None
    dy = sum_to(B, B.float_matmul(_transposed(B, x), g), B.shape(y)) if needed[1] else None
    return dx, dy


def _conv2d_dx(
    B: Backend, saved: Any, h: Array, needed: tuple[bool, ...], shape: Any, *options: Any
) -> tuple[Array | None, ...]:
    g, weight = saved
    dg = B.conv2d(h, weight, None, *options) if needed[0] else None
    dw = B.conv2d_dw(h, g, B.shape(weight), *options) if needed[1] else None
    return dg, dw


def _conv2d_dw(
    B: Backend, saved: Any, h: Array, needed: tuple[bool, ...], shape: Any, *options: Any
) -> tuple[Array | None, ...]:
    x, g = saved
    dx = B.conv2d_dx(g, h, B.shape(x), *options) if needed[0] else None
    dg = B.conv2d(x, h, None, *options) if needed[1] else None
    return dx, dg


def _conv2d_dx_forward(B: Backend, g: Array, weight: Array, *options: Any) -> Result:
    return B.conv2d_dx(g, weight, *options), (g, weight)


def _conv2d_dw_forward(B: Backend, x: Array, g: Array, *options: Any) -> Result:
    return B.conv2d_dw(x, g, *options), (x, g)


LINEAR: dict[str, Rule] = {
    "float_matmul": General(2, lambda B, x, y: (B.float_matmul(x, y), (x, y)), _matmul),
    "conv2d_dx": General(2, _conv2d_dx_forward, _conv2d_dx),
    "conv2d_dw": General(2, _conv2d_dw_forward, _conv2d_dw),
}
