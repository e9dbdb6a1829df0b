"""The contract's own definitions, each compiled to one program: in eager code one call instead of ten.

Activations, normalisation and interpolation are defined only in this way.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.nn.norm import NormOps
from phlox.backend.contract.nn.sampling import SamplingOps
from phlox.backend.contract.types import Array
from phlox.backend.contract.update import AdamScalars, UpdateOps
from phlox.backend.contract.widening import composed
from phlox.backend.jax.ops import simple


def fused(definition: Callable[..., Any], *static: int) -> Any:
    """A definition as a method whose arguments at these positions (not counting the backend) are not arrays.

    It returns only arrays and None. At half precision it would round at every step, or overflow.
    """
    run = jax.jit(definition, static_argnums=(0, *(position + 1 for position in static)), inline=True)

    def operation(self: Any, *arguments: Any) -> Any:
        return run(self, *arguments)

    return composed(operation)


class Activation(Backend):
    """See `phlox.backend.contract.nn.activation`."""

    float_relu = simple(jax.nn.relu)  # its gradient at zero is zero; a maximum's is not
    float_relu_backward = fused(ActivationOps.float_relu_backward)
    float_leaky_relu = fused(ActivationOps.float_leaky_relu)
    float_leaky_relu_backward = fused(ActivationOps.float_leaky_relu_backward)
    float_prelu = fused(ActivationOps.float_prelu)
    float_threshold = fused(ActivationOps.float_threshold)
    float_threshold_backward = fused(ActivationOps.float_threshold_backward)
    float_elu = fused(ActivationOps.float_elu)
    float_elu_backward = fused(ActivationOps.float_elu_backward)
    float_softplus = fused(ActivationOps.float_softplus)
    float_softplus_backward = fused(ActivationOps.float_softplus_backward)
    float_log_sigmoid = fused(ActivationOps.float_log_sigmoid)
    float_log_sigmoid_backward = fused(ActivationOps.float_log_sigmoid_backward)
    float_silu = fused(ActivationOps.float_silu)
    float_silu_backward = fused(ActivationOps.float_silu_backward)
    float_mish = fused(ActivationOps.float_mish)
    float_mish_backward = fused(ActivationOps.float_mish_backward)
    float_softsign = fused(ActivationOps.float_softsign)
    float_softsign_backward = fused(ActivationOps.float_softsign_backward)
    float_tanhshrink = fused(ActivationOps.float_tanhshrink)
    float_tanhshrink_backward = fused(ActivationOps.float_tanhshrink_backward)
    float_hardtanh = fused(ActivationOps.float_hardtanh)
    float_hardtanh_backward = fused(ActivationOps.float_hardtanh_backward)
    float_hardsigmoid = fused(ActivationOps.float_hardsigmoid)
    float_hardsigmoid_backward = fused(ActivationOps.float_hardsigmoid_backward)
    float_hardswish = fused(ActivationOps.float_hardswish)
    float_hardswish_backward = fused(ActivationOps.float_hardswish_backward)
    float_softshrink = fused(ActivationOps.float_softshrink)
    float_softshrink_backward = fused(ActivationOps.float_softshrink_backward)
    float_hardshrink = fused(ActivationOps.float_hardshrink)
    float_hardshrink_backward = fused(ActivationOps.float_hardshrink_backward)


class Norm(Backend):
    """See `phlox.backend.contract.nn.norm`."""

    layer_norm_forward = fused(NormOps.layer_norm_forward, 3)
    layer_norm_backward = fused(NormOps.layer_norm_backward, 2, 3)
    rms_norm_forward = fused(NormOps.rms_norm_forward, 2)
    rms_norm_backward = fused(NormOps.rms_norm_backward, 2, 3)
    group_norm_forward = fused(NormOps.group_norm_forward, 3, 4)
    group_norm_backward = fused(NormOps.group_norm_backward, 2, 3, 4)
    batch_norm_train_forward = fused(NormOps.batch_norm_train_forward, 3)
    batch_norm_train_backward = fused(NormOps.batch_norm_train_backward, 2, 3)


class Sampling(Backend):
    """See `phlox.backend.contract.nn.sampling`."""

    interpolate = fused(SamplingOps.interpolate, 1)
    grid_sample_forward = fused(SamplingOps.grid_sample_forward, 2, 3, 4)
    grid_sample_backward = fused(SamplingOps.grid_sample_backward, 2, 3, 4, 5)


def _adam(backend: Any, fixed: tuple[Any, ...], arrays: tuple[Any, ...], traced: tuple[Any, ...]) -> Any:
    (x, g, m, v), (lr, correction_1, correction_2) = arrays, traced
    beta_1, beta_2, epsilon, decay, decoupled = fixed
    numbers = AdamScalars(lr, beta_1, beta_2, epsilon, decay, decoupled, correction_1, correction_2)
    return UpdateOps.adam_update(backend, x, g, m, v, numbers)


_traced_adam = jax.jit(_adam, static_argnums=(0, 1), inline=True)


class Update(Backend):
    """See `phlox.backend.contract.update`."""

    @composed
    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamScalars) -> tuple[Array, Array, Array]:
        traced = numbers.lr, numbers.correction_1, numbers.correction_2
        # A program has one update for each parameter: JAX traces those of one shape only once. Alone, each operation
        # rounds as it does in eager code, and a number that is a constant is computed with in 64 bits.
        if not all(map(self.is_traced, (x, *traced))):
            return super().adam_update(x, g, m, v, numbers)
        return _traced_adam(self, tuple(numbers[1:6]), (x, g, m, v), traced)
