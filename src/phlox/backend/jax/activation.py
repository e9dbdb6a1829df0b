"""Activations on JAX: the contract's definitions, each as one compiled program."""

from __future__ import annotations

import jax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.jax.fused import fused
from phlox.backend.jax.ops import simple


class Activation(Backend):
    """See `phlox.backend.contract.nn.activation`."""

    float_relu = simple(jax.nn.relu)  # whose own gradient at zero, unlike that of a maximum, is zero
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
