"""The NumPy backend: training and inference with NumPy alone."""

from __future__ import annotations

from phlox.backend.numpy.backend import NumPy

__all__ = ["NumPy"]
