"""How far the result of a kernel is from the exact one."""

from __future__ import annotations

import torch


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference, over that of what it should be."""
    assert found.shape == exact.shape
    return float((found.double() - exact).norm() / exact.norm())
