"""Composites by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.nn import Gradients, Needed
from phlox.backend.contract.types import Array, Pair, Shape

_aten: Any = torch.ops.aten
_grad: Any = torch.nn.grad  # pyright: ignore[reportAttributeAccessIssue]


class Composites(Backend):
    """See `phlox.backend.contract.nn`."""

    float_tanh_backward = staticmethod(_aten.tanh_backward.default)
    float_sigmoid_backward = staticmethod(_aten.sigmoid_backward.default)

    def float_relu_backward(self, g: Array, y: Array) -> Array:
        return _aten.threshold_backward.default(g, y, 0)

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        if x.ndim != 2:
            return self.linear(x.reshape(-1, x.shape[-1]), weight, bias).reshape(*x.shape[:-1], weight.shape[1])
        return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)

    def softmax(self, x: Array, axis: int) -> Array:
        return torch.softmax(x, axis)

    def softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        return (_aten._softmax_backward_data(g, saved, axis, g.dtype),)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return torch.log_softmax(x, axis)

    def log_softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        return (_aten._log_softmax_backward_data(g, saved, axis, g.dtype),)

    def gelu(self, x: Array, approximate: bool) -> Array:
        return functional.gelu(x, approximate="tanh" if approximate else "none")

    def gelu_backward(self, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
        return (_aten.gelu_backward(g, saved, approximate="tanh" if approximate else "none"),)

    def layer_norm_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Any]:
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], gamma, beta, epsilon)
        return y, (x, mean, rstd, gamma, beta)

    def layer_norm_backward(self, saved: Any, g: Array, needed: Needed, epsilon: float) -> Gradients:
        x, mean, rstd, gamma, beta = saved
        mask = [*needed]
        return _aten.native_layer_norm_backward(g.contiguous(), x, x.shape[-1:], mean, rstd, gamma, beta, mask)

    # --- convolution and pooling

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Array:
        return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)

    def conv2d_backward(
        self, saved: Any, g: Array, needed: Needed, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Gradients:
        x, weight = saved
        sizes = [weight.shape[0]]
        options = (stride, padding, dilation, False, (0, 0), groups)
        return _aten.convolution_backward(g, x, weight, sizes, *options, [*needed])

    def conv2d_dx(
        self, g: Array, weight: Array, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Array:
        return _grad.conv2d_input(shape, weight, g, stride, padding, dilation, groups)

    def conv2d_dw(
        self, x: Array, g: Array, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Array:
        return _grad.conv2d_weight(x, shape, g, stride, padding, dilation, groups)

    def max_pool2d_forward(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> tuple[Array, Any]:
        y, places = _aten.max_pool2d_with_indices(x, window, stride, padding)
        return y, (x, places)

    def max_pool2d_backward(
        self, saved: Any, g: Array, needed: Needed, window: Pair, stride: Pair, padding: Pair
    ) -> Gradients:
        x, places = saved
        return (_aten.max_pool2d_with_indices_backward(g, x, window, stride, padding, (1, 1), False, places),)

    def avg_pool2d(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> Array:
        return functional.avg_pool2d(x, window, stride, padding)

    def avg_pool2d_forward(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> tuple[Array, Any]:
        return self.avg_pool2d(x, window, stride, padding), x

    def avg_pool2d_backward(
        self, saved: Any, g: Array, needed: Needed, window: Pair, stride: Pair, padding: Pair
    ) -> Gradients:
        return (_aten.avg_pool2d_backward(g, saved, window, stride, padding, False, True, None),)
