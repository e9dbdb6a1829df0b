"""Floor 6: transformations of functions."""

from __future__ import annotations

from phlox.transform import debug
from phlox.transform.checkpoint import checkpoint
from phlox.transform.compile import compile
from phlox.transform.custom import custom_gradient
from phlox.transform.derivatives import hessian, hvp, jacobian, jvp, vjp
from phlox.transform.grad import grad, value_and_grad

__all__ = [
    "checkpoint",
    "compile",
    "custom_gradient",
    "debug",
    "grad",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "value_and_grad",
    "vjp",
]
