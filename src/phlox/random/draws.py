"""Random tensors, drawn from the ambient stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phlox.backend import Bool, Device, DeviceLike, Float, Int, as_device
from phlox.errors import RangeError
from phlox.random.stream import current
from phlox.tensor import Tensor
from phlox.tensor.creation import sizes_of


def _draw(name: str, kind: Any, device: DeviceLike | None, *arguments: Any) -> Tensor[Any, Any, Any]:
    place: Device = as_device(device)
    backend = place.backend
    primitive = getattr(backend, f"random_{name}")(current().draw(backend), *arguments, place)
    return Tensor.from_primitive(primitive, backend, kind)


def uniform(
    shape: Sequence[int], low: float = 0.0, high: float = 1.0, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Float]:
    """Floats spread evenly over [low, high), of 24 random bits each."""
    unit = _draw("uniform", Float, device, sizes_of("uniform", shape))
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def normal(
    shape: Sequence[int], mean: float = 0.0, std: float = 1.0, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Float]:
    """Floats of the normal distribution."""
    standard = _draw("normal", Float, device, sizes_of("normal", shape))
    return standard if (mean, std) == (0.0, 1.0) else standard * std + mean


def bernoulli(shape: Sequence[int], p: float, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Bool]:
    """Truth values, each true with probability `p`, which counts to the nearest 1/65536."""
    if not 0.0 <= p <= 1.0:
        raise RangeError(f"bernoulli: a probability lies between 0 and 1, got {p}")
    return _draw("bernoulli", Bool, device, sizes_of("bernoulli", shape), round(p * 65536))


def integers(shape: Sequence[int], low: int, high: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Int]:
    """Integers spread evenly over [low, high)."""
    if low >= high:
        raise RangeError(f"integers: there is none in [{low}, {high})")
    return _draw("integers", Int, device, sizes_of("integers", shape), low, high)


def permutation(n: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Int]:
    """The integers from 0 to n - 1 in random order."""
    return _draw("permutation", Int, device, n)
