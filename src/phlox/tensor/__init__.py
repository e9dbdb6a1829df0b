"""Floor 3: the one `Tensor` class, and the functions that create and combine tensors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from phlox.lazy import lazily, lend
from phlox.tensor.argument_errors import guard_functions, guard_methods
from phlox.tensor.creation import (
    arange,
    eye,
    full,
    full_like,
    linspace,
    logspace,
    one_hot,
    ones,
    ones_like,
    tensor,
    tri,
    zeros,
    zeros_like,
)
from phlox.tensor.einops_backend import register_with_einops as _register_with_einops
from phlox.tensor.einsum import einsum
from phlox.tensor.functions import broadcast_arrays, concat, lift, matmul, maximum, meshgrid, minimum, stack, where
from phlox.tensor.interop import from_dlpack
from phlox.tensor.multiplication import (
    cross,
    diag,
    diag_embed,
    diagonal,
    dot,
    inner,
    kron,
    matrix_transpose,
    outer,
    tensordot,
    trace,
    vdot,
    vecdot,
)
from phlox.tensor.tensor import Gradients, Tensor

if TYPE_CHECKING:
    from phlox.tensor import functional, linalg, signal

__all__ = [
    "Gradients",
    "Tensor",
    "arange",
    "broadcast_arrays",
    "concat",
    "cross",
    "diag",
    "diag_embed",
    "diagonal",
    "dot",
    "einsum",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "functional",
    "inner",
    "kron",
    "lift",
    "linalg",
    "linspace",
    "logspace",
    "matmul",
    "matrix_transpose",
    "maximum",
    "meshgrid",
    "minimum",
    "one_hot",
    "ones",
    "ones_like",
    "outer",
    "signal",
    "stack",
    "tensor",
    "tensordot",
    "trace",
    "tri",
    "vdot",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {"functional": "", "linalg": "", "signal": ""})

lend({base.__module__ for base in Tensor.__mro__ if base.__module__.startswith("phlox.")}, Tensor=Tensor)
guard_methods(Tensor)
guard_functions(sys.modules[__name__], __all__)
_register_with_einops()
