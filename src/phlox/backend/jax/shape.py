"""Shapes on JAX."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Axes
from phlox.backend.jax.ops import op


def window_indices(count: int, size: int, step: int) -> Array:
    """The index of each element of each window."""
    return jnp.arange(count)[:, None] * step + jnp.arange(size)


@op(1, 2)
def _roll(x: Array, shifts: tuple[int, ...], axes: Axes) -> Array:
    return jnp.roll(x, shifts, axes)


@op(1, 2)
def _repeat(x: Array, times: int, axis: int) -> Array:
    return jnp.repeat(x, times, axis)


@op(1)
def _tile(x: Array, times: tuple[int, ...]) -> Array:
    return jnp.tile(x, times)


@op(1, 2)
def _extend(x: Array, widths: tuple[tuple[int, int], ...], mode: Any) -> Array:
    return jnp.pad(x, widths, mode)


@op(1, 2, 3)
def _windows(x: Array, axis: int, size: int, step: int) -> Array:
    indices = window_indices((x.shape[axis] - size) // step + 1, size, step)
    return jnp.moveaxis(jnp.take(x, indices, axis=axis, mode="clip"), axis + 1, -1)


class Shaping(Backend):
    """See `phlox.backend.contract.shape`."""

    roll = staticmethod(_roll)
    repeat = staticmethod(_repeat)
    tile = staticmethod(_tile)
    extend = staticmethod(_extend)
    windows = staticmethod(_windows)
