"""A backend as a third party would write it: what the contract requires, and nothing else."""

from __future__ import annotations

from typing import Any

from phlox.backend import EngineBackend, NumPy
from phlox.backend.contract import BoolOps, FloatOps, IntOps, RandomOps, ShapeOps

REQUIRED = {name for family in (ShapeOps, FloatOps, IntOps, BoolOps, RandomOps) for name in family.__annotations__}
"""Every operation that a backend must have."""

_ABOUT_ARRAYS = ("device", "device_of", "to_device", "from_host", "to_host", "kind_of", "to_dlpack", "dlpack_device")


class Plain(EngineBackend):
    """NumPy's arrays and required operations; all others are the contract's own definitions."""

    name = "plain"
    floats = ("f32", "f64")
    shape: Any = NumPy.__dict__["shape"]


for _name in (*REQUIRED, *_ABOUT_ARRAYS):
    setattr(Plain, _name, NumPy.__dict__[_name])
