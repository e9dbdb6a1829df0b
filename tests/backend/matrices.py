"""Matrices of random numbers in f32, in every layout that a product may meet."""

from __future__ import annotations

import numpy as np
import torch


def array(rows: int, columns: int, layout: str = "by rows", seed: int = 0) -> torch.Tensor:
    """One that lies by rows, or by columns, or is a part of a larger one whose numbers lie apart."""

    def numbers(*shape: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))

    if layout == "by columns":
        return numbers(columns, rows).t()
    return numbers(2 * rows, 3 * columns)[::2, ::3] if layout == "apart" else numbers(rows, columns)
