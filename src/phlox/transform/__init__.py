"""Floor 6: transformations of functions."""

from __future__ import annotations

from phlox.transform.compile import compile
from phlox.transform.grad import grad, value_and_grad

__all__ = ["compile", "grad", "value_and_grad"]
