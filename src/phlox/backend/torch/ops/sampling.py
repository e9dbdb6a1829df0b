"""Interpolation and sampling by PyTorch's own kernels."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.resampling import Resampling
from phlox.backend.contract.nn.sampling import Beyond, Reading
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.torch import autograd_bridge
from phlox.backend.torch.sizes import is_empty

_MODES = {
    ("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic",
    ("area", 1): "area", ("area", 2): "area", ("area", 3): "area",
}  # fmt: skip
"""PyTorch's names of modes. It lacks the others, or (nearest) rounds in another way."""
_READINGS = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def _kernel_mode(x: Array, plans: tuple[Resampling, ...]) -> str | None:
    """The mode of PyTorch's kernel for this, if there is one."""
    mode = _MODES.get((plans[0].mode, len(plans)))
    if any(plan.ratio is not None and plan.size == plan.out for plan in plans):
        return None  # for any ratio, the kernel would use the pixels unchanged
    if any(plan.antialias and plan.out == 1 for plan in plans):
        return None  # with one column the kernel reads the first row only
    forward = not any(plan.transposed for plan in plans)
    return mode if forward and not is_empty(x) and (len(plans) == 2 or not plans[0].antialias) else None


def _wide(x: Array) -> Array:
    """x in at least single precision: half precision is too coarse for coordinates, and some kernels lack it."""
    return x if x.dtype == torch.float64 else x.float()


def _interpolated(x: Array, plans: tuple[Resampling, ...], mode: str) -> Array:
    return _of_floats(_wide(x), plans, mode).to(x.dtype)


def _of_floats(x: Array, plans: tuple[Resampling, ...], mode: str) -> Array:
    if mode == "area":
        return functional.interpolate(x, size=[plan.out for plan in plans], mode=mode)
    options: dict[str, Any] = {"align_corners": plans[0].align_corners, "antialias": plans[0].antialias}
    if plans[0].ratio is None:
        return functional.interpolate(x, size=[plan.out for plan in plans], mode=mode, **options)
    factors = [1.0 / (plan.ratio or 1.0) for plan in plans]
    return functional.interpolate(x, scale_factor=factors, mode=mode, **options)


class Sampling(Backend):
    """See `phlox.backend.contract.nn.sampling`."""

    def interpolate(self, x: Array, plans: tuple[Resampling, ...]) -> Array:
        mode = _kernel_mode(x, plans)
        return super().interpolate(x, plans) if mode is None else _interpolated(x, plans, mode)

    def interpolate_forward(self, x: Array, plans: tuple[Resampling, ...]) -> tuple[Array, Any]:
        mode = _kernel_mode(x, plans)
        if mode is None:
            return super().interpolate_forward(x, plans)
        return autograd_bridge.forward(lambda x: _interpolated(x, plans, mode), x)

    def interpolate_backward(self, saved: Any, g: Array, needed: Needed, plans: tuple[Resampling, ...]) -> Gradients:
        return (
            super().interpolate_backward(saved, g, needed, plans)
            if saved is None
            else autograd_bridge.backward(saved, g, needed)
        )

    def grid_sample_forward(
        self, x: Array, grid: Array, reading: Reading, beyond: Beyond, align_corners: bool
    ) -> tuple[Array, Any]:
        if is_empty(x) or is_empty(grid):
            return super().grid_sample_forward(x, grid, reading, beyond, align_corners)
        return autograd_bridge.forward(
            lambda x, grid: functional.grid_sample(
                _wide(x), _wide(grid), mode=_READINGS[reading], padding_mode=beyond, align_corners=align_corners
            ).to(x.dtype),
            x,
            grid,
        )

    def grid_sample_backward(
        self, saved: Any, g: Array, needed: Needed, reading: Reading, beyond: Beyond, align_corners: bool
    ) -> Gradients:
        if len(saved) == 5:
            return super().grid_sample_backward(saved, g, needed, reading, beyond, align_corners)
        return autograd_bridge.backward(saved, g, needed)
