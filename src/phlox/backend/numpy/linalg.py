"""Linear algebra on NumPy: the definitions are NumPy's own, and these a shorter way through them."""

from __future__ import annotations

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.linalg import NEARLY
from phlox.backend.contract.types import Array


class Linalg(Backend):
    """See `phlox.backend.contract.linalg`."""

    def _signs(self, v: Array) -> Array:
        size = np.abs(v)
        near = size >= size.max(-2, keepdims=True) * NEARLY
        first = near.argmax(-2, keepdims=True)
        return np.where(np.take_along_axis(v, first, -2) < 0, -1.0, 1.0).astype(v.dtype)
