"""Floor 6: transformations of functions."""

from __future__ import annotations

from phlox.lazy import lazily
from phlox.transform.checkpoint import checkpoint
from phlox.transform.compile.api import compile
from phlox.transform.custom import custom_gradient
from phlox.transform.derivatives import hessian, hvp, jacobian, jvp, vjp
from phlox.transform.eval_shape import TensorSpec, eval_shape
from phlox.transform.grad import grad, value_and_grad
from phlox.transform.scan import scan
from phlox.transform.vmap import vmap

__all__ = [
    "TensorSpec",
    "checkpoint",
    "compile",
    "custom_gradient",
    "eval_shape",
    "grad",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "scan",
    "value_and_grad",
    "vjp",
    "vmap",
]

__getattr__, __dir__ = lazily(__name__, {"summary": ""})
