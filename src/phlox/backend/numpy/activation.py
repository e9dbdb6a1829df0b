"""Activations on NumPy: the contract's definitions, in blocks that fit the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.types import Array
from phlox.backend.numpy.blocks import SMALL, in_blocks


def in_parts(definition: Callable[..., Any], arrays: int = 1) -> Any:
    """A definition of the contract that is elementwise in its first operands, carried out block by block.

    Its temporaries then stay in the cache; infinities and NaNs give no warning.
    """

    def operation(self: Backend, *arguments: Any) -> Array:
        first = arguments[0]
        if np.size(first) <= SMALL:
            with np.errstate(all="ignore"):
                return definition(self, *arguments)
        parts = [np.ascontiguousarray(x).reshape(-1) for x in arguments[:arrays]]
        options = arguments[arrays:]
        out = np.empty_like(parts[0])

        def work(start: int, stop: int) -> None:
            out[start:stop] = definition(self, *(x[start:stop] for x in parts), *options)

        in_blocks(work, out.size, 1)
        return out.reshape(np.shape(first))

    return operation


_ZEROS: dict[Any, Array] = {np.dtype(kind): np.zeros((), kind) for kind in (np.float16, np.float32, np.float64)}
"""Zeros as arrays: NumPy would convert a scalar at every call, in the time of a maximum of a hundred elements."""


class Activation(Backend):
    """See `phlox.backend.contract.nn.activation`."""

    def float_relu(self, x: Array) -> Array:
        return np.maximum(x, _ZEROS.get(x.dtype, 0.0))

    float_leaky_relu = in_parts(ActivationOps.float_leaky_relu)
    float_leaky_relu_backward = in_parts(ActivationOps.float_leaky_relu_backward, 2)
    float_elu = in_parts(ActivationOps.float_elu)
    float_elu_backward = in_parts(ActivationOps.float_elu_backward, 2)
    float_softplus = in_parts(ActivationOps.float_softplus)
    float_softplus_backward = in_parts(ActivationOps.float_softplus_backward, 2)
    float_log_sigmoid = in_parts(ActivationOps.float_log_sigmoid)
    float_log_sigmoid_backward = in_parts(ActivationOps.float_log_sigmoid_backward, 2)
    float_silu = in_parts(ActivationOps.float_silu)
    float_silu_backward = in_parts(ActivationOps.float_silu_backward, 2)
    float_mish = in_parts(ActivationOps.float_mish)
    float_mish_backward = in_parts(ActivationOps.float_mish_backward, 2)
    float_softsign = in_parts(ActivationOps.float_softsign)
    float_softsign_backward = in_parts(ActivationOps.float_softsign_backward, 2)
    float_tanhshrink = in_parts(ActivationOps.float_tanhshrink)
    float_tanhshrink_backward = in_parts(ActivationOps.float_tanhshrink_backward, 2)
    float_hardsigmoid = in_parts(ActivationOps.float_hardsigmoid)
    float_hardswish = in_parts(ActivationOps.float_hardswish)
    float_hardswish_backward = in_parts(ActivationOps.float_hardswish_backward, 2)
    float_softshrink = in_parts(ActivationOps.float_softshrink)
