"""Composites of neural networks as functions of tensors: what the layers are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

from phlox.backend import Float, Int
from phlox.errors import KindError, ShapeError
from phlox.tensor.dispatch import ops_of
from phlox.tensor.explain import failure, mixed
from phlox.tensor.tensor import Tensor, wrap

Size2: TypeAlias = int | tuple[int, int]
"""A height and a width, or one number for both."""


def _pair(name: str, what: str, value: Size2, least: int) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or min(pair) < least:
        raise ShapeError(f"{name}: {what} must be one or two integers of at least {least}, got {value!r}")
    return pair


def _call(name: str, x: Tensor[Any, Any, Any], *arguments: Any) -> Tensor[Any, Any, Any]:
    """Call a composite; tensors among the arguments must be Float beside `x`."""
    ops = x._ops  # pyright: ignore[reportPrivateUsage]
    if ops.kind is not Float:
        raise KindError(f"{name} takes Float tensors, got {ops.kind.__name__}; convert with .float() first")
    natives: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            other = argument._ops  # pyright: ignore[reportPrivateUsage]
            if other is not ops:
                raise mixed(name, ops, other)
            natives.append(argument.primitive)
        else:
            natives.append(argument)
    try:
        return wrap(ops, ops[name](x.primitive, *natives))
    except Exception as error:
        raise failure(name, ops, (x.primitive, *natives), error) from error


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight + bias, for x [..., inputs], weight [inputs, outputs] and bias [outputs]."""
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[0]:
        raise ShapeError(
            f"linear: x of shape {x.shape} does not fit weight of shape {weight.shape}; "
            f"the last axis of x must be the first of weight"
        )
    if bias is not None and bias.shape != weight.shape[1:]:
        raise ShapeError(f"linear: bias of shape {bias.shape} does not fit weight of shape {weight.shape}")
    return _call("linear", x, weight, bias)


def layer_norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over the last axis (Ba, Kiros, Hinton 2016)."""
    for name, scale in (("gamma", gamma), ("beta", beta)):
        if scale is not None and scale.shape != x.shape[-1:]:
            raise ShapeError(f"layer_norm: {name} of shape {scale.shape} does not fit x of shape {x.shape}")
    return _call("layer_norm", x, gamma, beta, epsilon)


def cross_entropy(logits: Tensor, targets: Tensor[Any, Any, Int]) -> Tensor:
    """The negative log-likelihood of each target class under softmax(logits), not averaged.

    `logits` is [..., classes], `targets` an Int tensor [...]; so is the result. A target out of range is an error.
    """
    if targets.kind is not Int:
        raise KindError(f"cross_entropy takes class numbers as an Int tensor, got {targets.kind.__name__}")
    if logits.ndim < 1 or not logits.shape[-1] or targets.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy: targets of shape {targets.shape} do not fit logits of shape {logits.shape}; "
            f"there must be one target for each row of logits"
        )
    backend, classes = logits.backend, logits.shape[-1]
    if targets.backend is not backend:
        raise mixed("cross_entropy", logits._ops, targets._ops)  # pyright: ignore[reportPrivateUsage]
    count = targets.size
    rows = logits.reshape(count, classes)
    ops = ops_of(backend, Float)
    flat = targets.reshape(count).primitive
    try:
        backend.check_indices(flat, classes, from_end=False)
        losses = wrap(ops, backend.cross_entropy(rows.primitive, flat))
    except Exception as error:
        raise failure("cross_entropy", ops, (rows.primitive, flat), error) from error
    return losses.reshape(targets.shape)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Size2 = 1,
    padding: Size2 = 0,
    dilation: Size2 = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of images: x [n, channels, height, width], weight [out, channels / groups, kh, kw], bias [out].

    The result is [n, out, rows, columns] with rows = (height + 2 padding - dilation (kh - 1) - 1) // stride + 1.
    """
    strides, dilations = _pair("conv2d", "stride", stride, 1), _pair("conv2d", "dilation", dilation, 1)
    paddings = _pair("conv2d", "padding", padding, 0)
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(
            f"conv2d: x must be [n, channels, height, width] and weight [out, channels / groups, kh, kw], "
            f"got shapes {x.shape} and {weight.shape}"
        )
    out, per_group = weight.shape[:2]
    if groups < 1 or x.shape[1] != per_group * groups or out % groups:
        raise ShapeError(
            f"conv2d: x of shape {x.shape} does not fit weight of shape {weight.shape} in {groups} groups; "
            f"x needs {per_group * groups} channels, and the {out} outputs must divide into the groups"
        )
    if bias is not None and bias.shape != (out,):
        raise ShapeError(f"conv2d: bias of shape {bias.shape} does not fit {out} output channels")
    for axis in (0, 1):
        if x.shape[2 + axis] + 2 * paddings[axis] < dilations[axis] * (weight.shape[2 + axis] - 1) + 1:
            raise ShapeError(f"conv2d: the kernel of weight {weight.shape} is larger than the padded image {x.shape}")
    return _call("conv2d", x, weight, bias, strides, paddings, dilations, groups)


def _pool(name: str, x: Tensor, window: Size2, stride: Size2 | None, padding: Size2) -> Tensor:
    windows = _pair(name, "window", window, 1)
    strides = windows if stride is None else _pair(name, "stride", stride, 1)
    paddings = _pair(name, "padding", padding, 0)
    if x.ndim != 4:
        raise ShapeError(f"{name}: x must be [n, channels, height, width], got shape {x.shape}")
    for axis in (0, 1):
        if 2 * paddings[axis] > windows[axis]:
            raise ShapeError(f"{name}: the padding {paddings} is more than half of the window {windows}")
        if x.shape[2 + axis] + 2 * paddings[axis] < windows[axis]:
            raise ShapeError(f"{name}: the window {windows} is larger than the padded image {x.shape}")
    return _call(name, x, windows, strides, paddings)


def max_pool2d(x: Tensor, window: Size2, *, stride: Size2 | None = None, padding: Size2 = 0) -> Tensor:
    """The greatest value of each window of images [n, channels, height, width]; the stride is the window unless given.

    Padding counts as minus infinity. Among equals the first in reading order gets the gradient.
    """
    return _pool("max_pool2d", x, window, stride, padding)


def avg_pool2d(x: Tensor, window: Size2, *, stride: Size2 | None = None, padding: Size2 = 0) -> Tensor:
    """The mean of each window of images [n, channels, height, width]; padding counts as zeros."""
    return _pool("avg_pool2d", x, window, stride, padding)


def embedding(weight: Tensor, indices: Tensor[Any, Any, Int]) -> Tensor:
    """The rows of weight [entries, width] at `indices` [...]: [..., width]."""
    return weight.take(indices, 0)
