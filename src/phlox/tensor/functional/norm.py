"""Normalisation."""

from __future__ import annotations

import math
from typing import NamedTuple

from phlox.backend import Float
from phlox.errors import ShapeError
from phlox.host.dtypes import LARGEST
from phlox.tensor.functional.operands import check_kind, compute
from phlox.tensor.functions import at_full_precision
from phlox.tensor.tensor import Tensor

__all__ = [
    "batch_norm", "batch_norm_train", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "normalize",
    "rms_norm",
]  # fmt: skip


def layer_norm(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    axes: int | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over the last axis (Ba, Kiros, Hinton 2016), or the last `axes`.

    `gamma` and `beta` have the shape of the normalised axes. Without `axes`, their rank is the number of these axes.

    >>> import phlox as px
    >>> px.functional.layer_norm(px.tensor([[1.0, 3.0], [2.0, 2.0]]), epsilon=1e-12).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    check_kind("layer_norm", Float, x=x, gamma=gamma, beta=beta)
    default_count = next((scale.ndim for scale in (gamma, beta) if scale is not None), 1)
    count = _last_axes("layer_norm", x, default_count if axes is None else axes)
    return _over_last("layer_norm", x, count, {"gamma": gamma, "beta": beta}, epsilon)


def rms_norm(x: Tensor, gamma: Tensor | None = None, *, axes: int | None = None, epsilon: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last axis (Zhang, Sennrich 2019), or the last `axes`.

    `gamma` has the shape of the normalised axes. Without `axes`, its rank is the number of these axes.

    >>> import phlox as px
    >>> px.functional.rms_norm(px.tensor([3.0, 3.0]), epsilon=0.0).tolist()
    [1.0, 1.0]
    """
    check_kind("rms_norm", Float, x=x, gamma=gamma)
    count = _last_axes("rms_norm", x, (1 if gamma is None else gamma.ndim) if axes is None else axes)
    return _over_last("rms_norm", x, count, {"gamma": gamma}, epsilon)


def _last_axes(name: str, x: Tensor, count: int) -> int:
    if not 1 <= count <= x.ndim:
        raise ShapeError(f"{name}: cannot normalise the last {count} axes of a tensor of shape {x.shape}")
    return count


def _over_last(name: str, x: Tensor, count: int, scales: dict[str, Tensor | None], epsilon: float) -> Tensor:
    shape = x.shape
    normalised = shape[-count:]
    for operand, scale in scales.items():
        if scale is not None and scale.shape != normalised:
            raise ShapeError(
                f"{name}: {operand} of shape {scale.shape} does not fit x of shape {shape}; "
                f"it must have the shape of the normalised axes, {normalised}"
            )
    if count == 1:
        return compute(name, x, *scales.values(), epsilon)
    size = (math.prod(normalised),)
    flat = [None if scale is None else scale.reshape(size) for scale in scales.values()]
    return compute(name, x.reshape((*shape[:-count], *size)), *flat, epsilon).reshape(shape)


def group_norm(
    x: Tensor, groups: int, gamma: Tensor | None = None, beta: Tensor | None = None, *, epsilon: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over each group of channels of an example (Wu, He 2018).

    x is [n, channels, ...], with channels divisible by `groups`; gamma and beta are [channels].

    >>> import phlox as px
    >>> px.functional.group_norm(px.ones((3, 6, 4, 4)), 2).shape
    (3, 6, 4, 4)
    """
    return _by_group("group_norm", x, groups, gamma, beta, epsilon)


def instance_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, epsilon: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over each channel of an example (Ulyanov et al. 2016).

    x is [n, channels, ...]; gamma and beta are [channels].

    >>> import phlox as px
    >>> px.functional.instance_norm(px.ones((3, 6, 4, 4))).shape
    (3, 6, 4, 4)
    """
    _check_channels("instance_norm", x, gamma=gamma, beta=beta)
    return _by_group("instance_norm", x, x.shape[1], gamma, beta, epsilon)


def _by_group(name: str, x: Tensor, groups: int, gamma: Tensor | None, beta: Tensor | None, epsilon: float) -> Tensor:
    channels = _check_channels(name, x, gamma=gamma, beta=beta)
    if channels == 0:
        return x
    if groups < 1 or channels % groups:
        raise ShapeError(f"{name}: {channels} channels are not divisible by {groups} groups (x of shape {x.shape})")
    return compute("group_norm", x, gamma, beta, groups, epsilon)


def _check_channels(name: str, x: Tensor, **scales: Tensor | None) -> int:
    """The number of channels of x [n, channels, ...]; checks that each scale is [channels]."""
    check_kind(name, Float, x=x, **scales)
    if x.ndim < 2:
        raise ShapeError(f"{name}: x must be [n, channels, ...], got shape {x.shape}")
    for operand, scale in scales.items():
        if scale is not None and scale.shape != (x.shape[1],):
            raise ShapeError(f"{name}: {operand} of shape {scale.shape} does not fit the {x.shape[1]} channels of x")
    return x.shape[1]


class BatchNorm(NamedTuple):
    """The results of `batch_norm_train`."""

    y: Tensor
    mean: Tensor
    """[channels], the batch mean."""
    variance: Tensor
    """[channels], the biased batch variance (divided by n). The unbiased one is n / (n - 1) times this."""


def batch_norm_train(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, epsilon: float = 1e-5
) -> BatchNorm:
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over all axes but the channels, with the mean and the variance.

    x is [n, channels, ...]; gamma and beta are [channels]. All three results have gradients: detach the statistics
    before keeping running averages (Ioffe, Szegedy 2015).

    >>> import phlox as px
    >>> y, mean, variance = px.functional.batch_norm_train(px.tensor([[1.0], [3.0]]))
    >>> mean.tolist(), variance.tolist()
    ([2.0], [1.0])
    """
    _check_channels("batch_norm_train", x, gamma=gamma, beta=beta)
    return BatchNorm(*compute("batch_norm_train", x, gamma, beta, epsilon))


@at_full_precision
def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta with given statistics, as at inference.

    x is [n, channels, ...]; the others are [channels]. `batch_norm_train` computes the statistics from x instead. At
    half precision this is computed in f32, and the statistics may be f32 too.

    >>> import phlox as px
    >>> px.functional.batch_norm(px.tensor([[5.0]]), px.tensor([1.0]), px.tensor([4.0]), epsilon=0.0).tolist()
    [[2.0]]
    """
    channels = _check_channels("batch_norm", x, mean=mean, variance=variance, gamma=gamma, beta=beta)
    original = x
    if x.backend.full_precision() is not x.backend:
        x, mean, variance = (operand.to_full_precision() for operand in (x, mean, variance))
        gamma, beta = (None if operand is None else operand.to_full_precision() for operand in (gamma, beta))
    scale = (variance + epsilon).rsqrt()
    scale = scale if gamma is None else scale * gamma
    shift = -mean * scale if beta is None else beta - mean * scale
    shape = (channels, *(1 for _ in x.shape[2:]))
    y = x * scale.reshape(shape) + shift.reshape(shape)
    return y if x is original else y.from_full_precision(original)


@at_full_precision
def local_response_norm(x: Tensor, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * mean(x^2))^beta, with the mean over `size` channels around each one, zero-padded at the ends.

    x is [n, channels, ...] (Krizhevsky, Sutskever, Hinton 2012; as in PyTorch, alpha is divided by the size).

    >>> import phlox as px
    >>> px.functional.local_response_norm(px.ones((1, 6, 4, 4)), 3).shape
    (1, 6, 4, 4)
    """
    channels = _check_channels("local_response_norm", x)
    if size < 1:
        raise ShapeError(f"local_response_norm: the size must be at least 1, got {size}")
    zeros = [(0, 0) for _ in x.shape[2:]]
    padded = x.square().pad(((0, 0), (size // 2, (size - 1) // 2), *zeros))
    total = padded[:, :channels]
    for start in range(1, size):
        total = total + padded[:, start : start + channels]
    return x * (total * (alpha / size) + k) ** -beta


@at_full_precision
def normalize(x: Tensor, p: float = 2.0, axis: int | tuple[int, ...] | None = -1, *, epsilon: float = 1e-12) -> Tensor:
    """x / max(p-norm of x along an axis, epsilon): unit vectors; a zero vector stays zero.

    >>> import phlox as px
    >>> px.functional.normalize(px.tensor([3.0, 4.0])).tolist()
    [0.6, 0.8]
    """
    check_kind("normalize", Float, x=x)
    least = 1.0 / LARGEST[x.backend.float_element]  # a smaller epsilon would round to zero
    return x / x.norm(p, axis, keepdims=True).maximum(max(epsilon, least))
