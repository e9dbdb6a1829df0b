"""Shapes and slices. Each operation is linear and comes with its transpose, which is linear too."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Rule, sum_to
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Axes, Shape


def _inverse(axes: Axes) -> Axes:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _where_forward(B: Backend, condition: Array, x: Any, y: Any) -> tuple[Array, Any]:
    shapes = tuple(() if isinstance(v, (int, float)) else B.shape(v) for v in (x, y))
    return B.where(condition, x, y), (condition, shapes)


def _where_backward(B: Backend, saved: Any, g: Array, needed: tuple[bool, ...]) -> tuple[Array | None, ...]:
    condition, (shape_x, shape_y) = saved
    dx = sum_to(B, B.where(condition, g, 0.0), shape_x) if needed[1] else None
    dy = sum_to(B, B.where(condition, 0.0, g), shape_y) if needed[2] else None
    return None, dx, dy


def _unpad(B: Backend, shape: Shape, g: Array, needed: object, widths: Any, value: float) -> tuple[Array]:
    inside = tuple(slice(before, before + size, 1) for size, (before, _) in zip(shape, widths, strict=True))
    return (B.index(g, inside),)


SHAPE: dict[str, Rule] = {
    "reshape": General(
        1,
        lambda B, x, shape: (B.reshape(x, shape), B.shape(x)),
        lambda B, old, g, needed, shape: (B.reshape(g, old),),
    ),
    "permute_dims": General(
        1,
        lambda B, x, axes: (B.permute_dims(x, axes), None),
        lambda B, saved, g, needed, axes: (B.permute_dims(g, _inverse(axes)),),
    ),
    "broadcast_to": General(
        1,
        lambda B, x, shape: (B.broadcast_to(x, shape), B.shape(x)),
        lambda B, old, g, needed, shape: (sum_to(B, g, old),),
    ),
    "flip": General(
        1, lambda B, x, axes: (B.flip(x, axes), None), lambda B, saved, g, needed, axes: (B.flip(g, axes),)
    ),
    "roll": General(
        1,
        lambda B, x, shifts, axes: (B.roll(x, shifts, axes), None),
        lambda B, saved, g, needed, shifts, axes: (B.roll(g, tuple(-shift for shift in shifts), axes),),
    ),
    "windows": General(
        1,
        lambda B, x, axis, size, step: (B.windows(x, axis, size, step), B.shape(x)),
        lambda B, shape, g, needed, axis, size, step: (B.float_windows_adjoint(g, axis, size, step, shape),),
    ),
    "pad": General(1, lambda B, x, widths, value: (B.pad(x, widths, value), B.shape(x)), _unpad),
    "where": General(3, _where_forward, _where_backward),
}
