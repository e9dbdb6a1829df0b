"""Activations as functions; see the methods of `Tensor` of the same names."""

from __future__ import annotations

from phlox.tensor.tensor import Tensor

relu = Tensor.relu
relu6 = Tensor.relu6
leaky_relu = Tensor.leaky_relu
prelu = Tensor.prelu
threshold = Tensor.threshold
elu = Tensor.elu
selu = Tensor.selu
celu = Tensor.celu
sigmoid = Tensor.sigmoid
log_sigmoid = Tensor.log_sigmoid
softplus = Tensor.softplus
silu = Tensor.silu
gelu = Tensor.gelu
mish = Tensor.mish
softsign = Tensor.softsign
tanh = Tensor.tanh
tanhshrink = Tensor.tanhshrink
hardtanh = Tensor.hardtanh
hardsigmoid = Tensor.hardsigmoid
hardswish = Tensor.hardswish
hardshrink = Tensor.hardshrink
softshrink = Tensor.softshrink
glu = Tensor.glu
swiglu = Tensor.swiglu
geglu = Tensor.geglu
softmax = Tensor.softmax
softmin = Tensor.softmin
log_softmax = Tensor.log_softmax

__all__ = [
    "celu", "elu", "geglu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
    "log_sigmoid", "log_softmax", "mish", "prelu", "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softmin",
    "softplus", "softshrink", "softsign", "swiglu", "tanh", "tanhshrink", "threshold",
]  # fmt: skip
