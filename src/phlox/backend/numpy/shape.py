"""Shapes on NumPy."""

from __future__ import annotations

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, native
from phlox.backend.device import Device


class Shaping(Backend):
    """See `phlox.backend.contract.shape`."""

    repeat = native(np.repeat)
    tile = native(np.tile)

    def windows(self, x: Array, axis: int, size: int, step: int) -> Array:
        found = np.lib.stride_tricks.sliding_window_view(x, size, axis)
        return found[(*(slice(None),) * axis, slice(None, None, step))]

    def bool_tri(self, rows: int, columns: int, k: int, device: Device) -> Array:
        return np.tri(rows, columns, k, np.bool_)
