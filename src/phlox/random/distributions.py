"""Samples of distributions, computed from the generator's draws.

At half precision they are computed in float32 and rounded once, so that tails and small probabilities are correct.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from phlox.backend import Backend, Bool, Device, DeviceLike, Float, Int, as_device
from phlox.backend.contract.backend import without_autodiff
from phlox.backend.parallel import rows_of
from phlox.backend.threefry.half_normal import NODES, STEPS
from phlox.batching import seen_from_inside
from phlox.errors import KindError, RangeError, ShapeError
from phlox.random.draws import draw, draw_on, integers, permutation
from phlox.random.stream import current
from phlox.tensor import Tensor, tensor, where
from phlox.tensor.backend_promotion import on_vmap_backend
from phlox.tensor.creation import Shape, sizes_of

_Floats = Tensor[Any, Any, Float]


def _full_precision_backend(backend: Backend) -> Backend:
    """The backend without autodiff, at f32 or higher precision."""
    return without_autodiff(backend).full_precision()


def _resolve_device(device: DeviceLike | None) -> Device:
    return seen_from_inside(as_device(device))


def _uniform(shape: tuple[int, ...], device: Device) -> _Floats:
    """Uniform in [0, 1), on the backend at full precision."""
    device = seen_from_inside(device)
    wide = _full_precision_backend(device.backend)
    state = current().draw(device.backend)
    return Tensor.from_primitive(draw_on(wide, "uniform", state, shape, device.on(wide)), wide, Float)


def _to_device(x: Tensor[Any, Any, Any], device: Device) -> Tensor[Any, Any, Any]:
    """Move from the backend at full precision to the requested device."""
    device = seen_from_inside(device)
    backend, target = x.backend, device.backend
    primitive = x.primitive if backend is without_autodiff(target) else backend.cast(x.primitive, target, device)
    return Tensor.from_primitive(primitive, target, x.kind)


def _transformed(
    name: str, shape: Shape, scale: float, device: DeviceLike | None, fn: Callable[[_Floats], _Floats]
) -> _Floats:
    if not scale >= 0.0:
        raise RangeError(f"{name}: the scale must not be negative, got {scale}")
    target = _resolve_device(device)
    return _to_device(fn(_uniform(sizes_of(name, shape), target)), target)


_LEAST = 2.0**-25
"""Replaces zero among multiples of 2**-24."""


def bernoulli(shape: Shape, p: float | _Floats, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Bool]:
    """Draw Bool samples, each true with probability `p`.

    A scalar p is rounded to a multiple of 1/65536. A tensor p broadcasts to `shape`; the result is on its device, and
    each probability has 24 bits. Raises `RangeError` if p is outside [0, 1] (for a tensor, not during tracing).

    >>> import phlox as px
    >>> px.random.bernoulli((2, 2), px.tensor([0.0, 1.0])).tolist()
    [[False, True], [False, True]]
    """
    sizes = sizes_of("bernoulli", shape)
    if not isinstance(p, Tensor):
        if not 0.0 <= p <= 1.0:
            raise RangeError(f"bernoulli: a probability must be between 0 and 1, got {p}")
        return draw("bernoulli", Bool, device, sizes, round(p * 65536))
    if p.kind is not Float:
        raise KindError(f"bernoulli: p must be a Float tensor, got {p.kind.__name__}; convert with .float() first")
    chances = _at_full_precision(p)
    if not chances.backend.is_traced(chances.primitive) and not bool(((chances >= 0.0) & (chances <= 1.0)).all()):
        raise RangeError("bernoulli: probabilities must be between 0 and 1, but some elements of p are not")
    return _to_device(_uniform(sizes, p.device) < chances.broadcast_to(sizes), p.device)


def exponential(shape: Shape, scale: float = 1.0, *, device: DeviceLike | None = None) -> _Floats:
    """Draw samples of the exponential distribution with mean `scale`: -scale log(1 - u) for u uniform in [0, 1).

    They are equal on every backend up to rounding of the engine's logarithm.

    >>> import phlox as px
    >>> px.random.exponential((2, 3), scale=2.0).shape
    (2, 3)
    """
    return _transformed("exponential", shape, scale, device, lambda u: (-u).log1p() * -scale)


def gumbel(shape: Shape, loc: float = 0.0, scale: float = 1.0, *, device: DeviceLike | None = None) -> _Floats:
    """Draw samples of the Gumbel distribution: loc - scale log(e) for e exponential.

    They are equal on every backend up to rounding of the engine's logarithm.

    >>> import phlox as px
    >>> px.random.gumbel((2, 3)).shape
    (2, 3)
    """
    return _transformed("gumbel", shape, scale, device, lambda u: (-(-u.maximum(_LEAST)).log1p()).log() * -scale + loc)


def laplace(shape: Shape, loc: float = 0.0, scale: float = 1.0, *, device: DeviceLike | None = None) -> _Floats:
    """Draw samples of the Laplace distribution: loc - scale sign(v) log(1 - 2 |v|) for v uniform in [-1/2, 1/2).

    They are equal on every backend up to rounding of the engine's logarithm.

    >>> import phlox as px
    >>> px.random.laplace((2, 3)).shape
    (2, 3)
    """

    def from_uniform(u: _Floats) -> _Floats:
        v = u.maximum(_LEAST) - 0.5
        return v.sign() * (v.abs() * -2.0).log1p() * -scale + loc

    return _transformed("laplace", shape, scale, device, from_uniform)


def truncated_normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    *,
    device: DeviceLike | None = None,
) -> _Floats:
    """Draw samples of the normal distribution truncated to [low, high] standard deviations around the mean.

    There is no rejection. The generator has 2**25 equally likely normal values; one of those within the bounds is
    chosen uniformly. So draws are bit-identical on every backend, like those of `normal`. Raises `RangeError` if fewer
    than 1024 values are within the bounds (about 3e-5 of the distribution).

    >>> import phlox as px
    >>> x = px.random.truncated_normal((1000,), std=0.5)
    >>> bool((x.abs() <= 1.0).all())
    True
    """
    first, end = (math.ceil(math.erfc(-bound / math.sqrt(2.0)) * 2.0**24 - 0.5) for bound in (low, high))
    if not (low < high and end - first >= 1024 and std >= 0.0):
        raise RangeError(
            f"truncated_normal: the interval from {low} to {high} standard deviations has too little probability"
            if std >= 0.0
            else f"truncated_normal: the standard deviation must not be negative, got {std}"
        )
    target = _resolve_device(device)
    wide = _full_precision_backend(target.backend)
    wide_device = target.on(wide)
    state = current().draw(target.backend)
    drawn = draw_on(wide, "integers", state, sizes_of("truncated_normal", shape), first, end, wide_device)
    x = _quantile(Tensor.from_primitive(drawn, wide, Int), wide_device).clip(low, high)
    return _to_device(x if (mean, std) == (0.0, 1.0) else x * std + mean, target)


def _quantile(j: Tensor[Any, Any, Int], device: Device) -> _Floats:
    """The normal quantile at (j + 1/2) / 2**25, as in Threefry's `half_normal`, computed with Int tensors."""
    upper = j >= 2**24
    m = where(upper, -j + 2**25, j + 1)
    # m = mantissa * 2**(exponent - 23), with the mantissa in [2**23, 2**24].
    exponent = m * 0 + 23
    for shift in (16, 8, 4, 2, 1):
        small = m < 2 ** (24 - shift)
        m = where(small, m * 2**shift, m)
        exponent = where(small, exponent - shift, exponent)
    node = exponent * 512 + m // 2**14 - 512
    nodes, steps = tensor(NODES, device=device), tensor(STEPS, device=device)
    size = (nodes.take(node) - steps.take(node) * (m % 2**14) // 2**14).float() * 2.0**-26
    return where(upper, size, -size)


def categorical(
    logits: Tensor[Any, Any, Float] | None = None,
    shape: Shape = (),
    *,
    probs: Tensor[Any, Any, Float] | None = None,
    axis: int = -1,
) -> Tensor[Any, Any, Int]:
    """Sample class indices along an axis, in proportion to exp(logits), or to `probs`, which need not sum to one.

    The axis of the classes is removed, and `shape`, for independent draws from each distribution, is prepended. A class
    of probability zero (logit minus infinity) is never drawn. Each draw takes one uniform number u of 24 bits. The
    class is the one where the cumulative sum of probabilities reaches (1 - u) times the total. So the same logits give
    the same classes on every backend, unless u hits a boundary within the rounding error of that sum.

    Raises `RangeError` if no class is possible, or if a weight is negative or NaN (not during tracing).

    >>> import phlox as px
    >>> x = px.random.categorical(probs=px.tensor([[0.0, 2.0], [1.0, 0.0]]), shape=(3,))
    >>> x.tolist()
    [[1, 0], [1, 0], [1, 0]]
    """
    if (logits is None) == (probs is None):
        raise KindError("categorical: give either logits or probs")
    params = probs if logits is None else logits
    assert params is not None
    if params.kind is not Float:
        raise KindError(f"categorical: give a Float tensor, got {params.kind.__name__}; convert with .float() first")
    index = params._axis("categorical", axis)  # pyright: ignore[reportPrivateUsage]
    if params.shape[index] == 0:
        raise ShapeError(f"categorical: there are no classes along axis {index} of shape {params.shape}")
    device, draws = params.device, sizes_of("categorical", shape)
    x = _at_full_precision(params).moveaxis(index, -1)
    if logits is None:
        weights = x
    else:
        highest = x.max(-1, keepdims=True)
        weights = (x - where(highest.isfinite(), highest, 0.0)).exp()
    # Zero weights must not change the cumulative sum at all, not even by rounding.
    sums = where(weights > 0.0, weights.cumsum(-1), 0.0).cummax(-1)
    _check_weights("categorical", weights, sums)
    batch = x.shape[:-1]
    unit = _uniform((*batch, math.prod(draws)), device)
    sought = (-unit + 1.0) * sums[..., -1:]
    class_numbers = sums.backend.float_searchsorted(sums.primitive, sought.primitive, False)
    classes = Tensor.from_primitive(class_numbers, sums.backend, Int).reshape((*batch, *draws))
    rank = len(batch)
    classes = classes.permute_dims((*range(rank, rank + len(draws)), *range(rank)))
    return _to_device(classes, device)


def _at_full_precision(x: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    """The values on the backend at full precision, without autodiff."""
    x = on_vmap_backend(x)
    backend = x.backend
    engine, wide = without_autodiff(backend), _full_precision_backend(backend)
    values = backend.strip(x.primitive)
    if wide is not engine:
        values = engine.cast(values, wide, x.device.on(wide))
    return Tensor.from_primitive(values, wide, Float)


def _check_weights(name: str, weights: Tensor[Any, Any, Any], sums: Tensor[Any, Any, Any]) -> None:
    if weights.backend.is_traced(weights.primitive):
        return
    totals = sums[..., -1]
    if not bool((weights >= 0.0).all()) or not bool(((totals > 0.0) & totals.isfinite()).all()):
        raise RangeError(f"{name}: weights must be finite and not negative, and each distribution needs a positive one")


def choice(
    x: Tensor[Any, Any, Any] | int,
    shape: Shape = (),
    *,
    replace: bool = True,
    probs: Tensor[Any, Any, Float] | None = None,
    axis: int = 0,
    device: DeviceLike | None = None,
) -> Tensor[Any, Any, Any]:
    """Sample slices of a tensor along an axis, which `shape` replaces; for an integer n, integers from 0 to n - 1.

    Slices are equally likely, or have probabilities in proportion to `probs` [n]. With `replace=False` none is drawn
    twice. With `probs` too, they are drawn one after another in proportion to the remaining weights (Efraimidis,
    Spirakis 2006: "Weighted random sampling with a reservoir").

    Raises `ShapeError` if `probs` has another shape, `RangeError` if there are too few slices to choose from.

    >>> import phlox as px
    >>> sorted(px.random.choice(3, (3,), replace=False).tolist())
    [0, 1, 2]
    """
    draws = sizes_of("choice", shape)
    count = math.prod(draws)
    if isinstance(x, Tensor):
        axis, device = x._axis("choice", axis), x.device  # pyright: ignore[reportPrivateUsage]
        n = x.shape[axis]
    else:
        (n,) = sizes_of("choice", (x,))
    if probs is not None and probs.shape != (n,):
        raise ShapeError(f"choice: probs must have shape ({n},), one for each choice, got {probs.shape}")
    if (n == 0 and count) or (not replace and count > n):
        raise RangeError(f"choice: cannot choose {count} of {n}{'' if replace else ' without replacement'}")
    if replace:
        picks = integers(draws, 0, max(n, 1), device=device) if probs is None else categorical(shape=draws, probs=probs)
    elif probs is None:
        picks = permutation(n, device=device)[:count].reshape(draws)
    else:
        picks = _without_replacement(probs, count).reshape(draws)
    return x.take(picks, axis) if isinstance(x, Tensor) else picks


def _without_replacement(probs: Tensor[Any, Any, Any], count: int) -> Tensor[Any, Any, Any]:
    weights = _at_full_precision(probs)
    _check_weights("choice", weights, weights.cumsum(0))
    if not weights.backend.is_traced(weights.primitive) and int(weights.count_nonzero()) < count:
        raise RangeError(f"choice: cannot choose {count} without replacement: fewer weights are positive")
    with rows_of(None):  # like a permutation, it is not of the rows of a batch
        waits = (-_uniform(weights.shape, probs.device).maximum(_LEAST)).log1p() / -weights
    order = weights.backend.float_argsort(waits.primitive, 0, False)
    return _to_device(Tensor.from_primitive(order, weights.backend, Int)[:count], probs.device)
