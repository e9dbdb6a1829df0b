"""Random tensors from the ambient stream: the generator's own draws, bit-identical on every backend."""

from __future__ import annotations

from typing import Any

from phlox.backend import Device, DeviceLike, Float, Int, as_device
from phlox.backend.parallel import row_group
from phlox.batching import seen_from_inside
from phlox.errors import RangeError
from phlox.random.stream import current, rows
from phlox.tensor import Tensor
from phlox.tensor.creation import Shape, sizes_of
from phlox.tensor.products import rounded


def draw(name: str, kind: Any, device: DeviceLike | None, *arguments: Any) -> Tensor[Any, Any, Any]:
    target: Device = seen_from_inside(as_device(device))
    backend = target.backend
    state = current().draw(backend)
    if row_group() is None:
        primitive = getattr(backend, f"random_{name}")(state, *arguments, target)
    else:
        primitive = draw_on(backend, name, state, *arguments, target)
    return Tensor.from_primitive(primitive, backend, kind)


def draw_on(backend: Any, name: str, state: Any, *arguments: Any) -> Any:
    """A draw by a backend; only of this process's rows if it computes on rows of a global batch."""
    function = getattr(backend, f"random_{name}")
    group = rows()
    return function(state, *arguments) if group is None else function(state, *arguments, group)


def uniform(
    shape: Shape, low: float = 0.0, high: float = 1.0, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Float]:
    """Draw samples of the uniform distribution over [low, high), with 24 random bits each.

    With bounds other than 0 and 1 the result is rounded, so it can equal `high`.

    >>> import phlox as px
    >>> px.random.uniform((2, 3), -1.0, 1.0).shape
    (2, 3)
    """
    unit = draw("uniform", Float, device, sizes_of("uniform", shape))
    return unit if (low, high) == (0.0, 1.0) else _scale_and_shift(unit, high - low, low)


def _scale_and_shift(x: Tensor[Any, Any, Float], scale: float, offset: float) -> Tensor[Any, Any, Float]:
    """x * scale + offset; a program rounds twice too, so that its draws equal those of eager calls."""
    return rounded(x * scale) + offset


def uniform_like(like: Tensor[Any, Any, Any], low: float = 0.0, high: float = 1.0) -> Tensor[Any, Any, Float]:
    """`uniform` with the shape and device of another tensor.

    >>> import phlox as px
    >>> px.random.uniform_like(px.zeros((2, 3))).shape
    (2, 3)
    """
    return uniform(like.shape, low, high, device=like.device)


def normal(
    shape: Shape, mean: float = 0.0, std: float = 1.0, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Float]:
    """Draw samples of the normal distribution with `mean` and standard deviation `std`.

    >>> import phlox as px
    >>> px.random.normal((2, 3), std=0.02).shape
    (2, 3)
    """
    standard = draw("normal", Float, device, sizes_of("normal", shape))
    return standard if (mean, std) == (0.0, 1.0) else _scale_and_shift(standard, std, mean)


def normal_like(like: Tensor[Any, Any, Any], mean: float = 0.0, std: float = 1.0) -> Tensor[Any, Any, Float]:
    """`normal` with the shape and device of another tensor.

    >>> import phlox as px
    >>> px.random.normal_like(px.zeros((2, 3))).shape
    (2, 3)
    """
    return normal(like.shape, mean, std, device=like.device)


def integers(shape: Shape, low: int, high: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Int]:
    """Draw uniform integers in [low, high). Raises `RangeError` if there are none.

    >>> import phlox as px
    >>> px.random.integers((3,), 5, 6).tolist()
    [5, 5, 5]
    """
    if low >= high:
        raise RangeError(f"integers: there are no integers in [{low}, {high})")
    return draw("integers", Int, device, sizes_of("integers", shape), low, high)


def permutation(n: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Int]:
    """Draw a random order of the integers from 0 to n - 1.

    >>> import phlox as px
    >>> sorted(px.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    target: Device = seen_from_inside(as_device(device))
    backend = target.backend
    (count,) = sizes_of("permutation", (n,))
    primitive = backend.random_permutation(current().draw(backend), count, target)
    return Tensor.from_primitive(primitive, backend, Int)


def shuffle(x: Tensor[Any, Any, Any], axis: int = 0) -> Tensor[Any, Any, Any]:
    """Return the slices of a tensor along an axis in random order.

    >>> import phlox as px
    >>> px.random.shuffle(px.tensor([7, 8, 9])).sum().item()
    24
    """
    index = x._axis("shuffle", axis)  # pyright: ignore[reportPrivateUsage]
    return x.take(permutation(x.shape[index], device=x.device), index)
