"""The masks of dropout in programs on a CPU, drawn by our own kernel: the same bits as NumPy's."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch

from phlox.backend.parallel import Part
from phlox.backend.threefry.generator import check_draw, check_threshold
from phlox.backend.torch.compiler.kernels.cpp import NUMBER, POINTER, SIZE, load


@cache
def _kernel() -> Any:
    return load("bernoulli", {"draw": [POINTER, SIZE, SIZE, SIZE, NUMBER, POINTER, NUMBER]})


def draw(
    state: np.ndarray[Any, Any], shape: tuple[int, ...], threshold: int, part: Part | None = None
) -> torch.Tensor | None:
    """True with probability threshold / 65536; None if there is no kernel for this CPU."""
    kernel = _kernel()
    if kernel is None:
        return None
    check_threshold(threshold)
    n = math.prod(shape)
    start, total = Part(0, n) if part is None else part
    check_draw((total + 1) // 2, int(state[2]))
    mask = torch.empty(shape, dtype=torch.bool)
    kernel.draw(state.ctypes.data, start, n, total, threshold, mask.data_ptr(), torch.get_num_threads())
    return mask
