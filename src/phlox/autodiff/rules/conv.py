"""Convolution and sums over windows: maps that are linear in each operand and transposes of each other."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Result, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed, Shape


def _conv_dx_forward(B: Backend, g: Array, weight: Array, *options: Any) -> Result:
    return B.conv_dx(g, weight, *options), (g, weight)


def _conv_dx(B: Backend, saved: Any, h: Array, needed: Needed, shape: Shape, *options: Any) -> Gradients:
    g, weight = saved
    dg = B.conv(h, weight, None, *options) if needed[0] else None
    dw = B.conv_dw(h, g, B.shape(weight), *options) if needed[1] else None
    return dg, dw


def _conv_dw_forward(B: Backend, x: Array, g: Array, *options: Any) -> Result:
    return B.conv_dw(x, g, *options), (x, g)


def _conv_dw(B: Backend, saved: Any, h: Array, needed: Needed, shape: Shape, *options: Any) -> Gradients:
    x, g = saved
    dx = B.conv_dx(g, h, B.shape(x), *options) if needed[0] else None
    dg = B.conv(x, h, None, *options) if needed[1] else None
    return dx, dg


def _im2col_forward(B: Backend, x: Array, *options: Any) -> Result:
    return B.im2col(x, *options), B.shape(x)


def _im2col(B: Backend, saved: Shape, g: Array, needed: Needed, *options: Any) -> Gradients:
    return (B.col2im(g, saved, *options),)


def _col2im_forward(B: Backend, columns: Array, *options: Any) -> Result:
    return B.col2im(columns, *options), None


def _col2im(B: Backend, saved: Any, g: Array, needed: Needed, shape: Shape, *options: Any) -> Gradients:
    return (B.im2col(g, *options),)


def _adaptive_sum_forward(B: Backend, x: Array, counts: Shape) -> Result:
    return B.adaptive_sum_pool(x, counts), B.shape(x)[2:]


def _adaptive_sum(B: Backend, saved: Shape, g: Array, needed: Needed, counts: Shape) -> Gradients:
    return (B.adaptive_sum_pool(g, saved),)


CONV: dict[str, Rule] = {
    "conv_dx": General(2, _conv_dx_forward, _conv_dx),
    "conv_dw": General(2, _conv_dw_forward, _conv_dw),
    "im2col": General(1, _im2col_forward, _im2col),
    "col2im": General(1, _col2im_forward, _col2im),
    "adaptive_sum_pool": General(1, _adaptive_sum_forward, _adaptive_sum),
}
