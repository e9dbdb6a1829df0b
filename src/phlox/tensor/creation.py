"""Making tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, TypeVar, cast, overload

import numpy as np

from phlox.backend import Bool, DeviceLike, Float, Int, Kind, as_device
from phlox.backend.kind import kind_of_dtype
from phlox.errors import IndexRangeError, KindError, RangeError, ShapeError
from phlox.tensor.dispatch import ops_of
from phlox.tensor.tensor import Tensor, wrap

T = TypeVar("T", bound=Tensor[Any, Any, Any])


def tensor(data: Any, *, device: DeviceLike | None = None, kind: type[Kind] | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of these values: numbers, nested sequences of them, or anything that NumPy can read as an array.

    The kind is that of the values unless given; the element type is the backend's. Raises `RangeError` for a value that
    does not fit it, `ShapeError` for sequences of unequal length, `KindError` for values that are no numbers.

    >>> tensor([[1, 2], [3, 4]]).kind.__name__
    'Int'
    """
    place = as_device(device)
    if isinstance(data, Tensor):
        moved = cast("Tensor[Any, Any, Any]", data).to_device(place)
        return moved if kind is None or kind is moved.kind else getattr(moved, kind.name)()
    try:
        values = np.asarray(data)
    except ValueError as error:
        raise ShapeError(
            f"tensor: the values do not form an array; are nested sequences of one length? ({error})"
        ) from None
    except OverflowError as error:
        raise RangeError(f"tensor: {error}") from None
    if values.dtype == object:
        if values.size and all(isinstance(value, int) for value in values.flat):
            raise RangeError(f"tensor: {max(values.flat, key=abs)} does not fit an integer of any backend")
        raise KindError(f"tensor: cannot make a tensor of {type(data).__name__}; give numbers or sequences of numbers")
    found = Float if values.size == 0 and not isinstance(data, np.ndarray) else kind_of_dtype(values.dtype)
    wanted = found if kind is None else kind
    if wanted is not found:
        values = _converted(values, found, wanted)
    return wrap(ops_of(place.backend, wanted), place.backend.from_host(values, wanted, place))


def _converted(values: np.ndarray[Any, Any], found: type[Kind], wanted: type[Kind]) -> np.ndarray[Any, Any]:
    """Host values of another kind, without loss but for the fractions of floats that become integers."""
    if wanted is Float:
        return values.astype(np.float64)
    if wanted is Bool:
        return values != 0
    if found is Bool:
        return values.astype(np.int64)
    whole = np.trunc(values.astype(np.float64))
    outside = ~(np.abs(whole) < 2.0**63)
    if outside.any():
        raise RangeError(f"tensor: {values[outside].flat[0]} does not fit an integer of any backend")
    return whole.astype(np.int64)


def sizes_of(name: str, shape: Any) -> tuple[int, ...]:
    """A shape that was given, as a tuple of non-negative integers."""
    try:
        sizes = tuple(index(size) for size in shape)
    except TypeError:
        raise ShapeError(f"{name}: a shape is a sequence of integers, got {shape!r}") from None
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{name}: a shape has no negative sizes, got {sizes}")
    return sizes


@overload
def full(  # pyright: ignore[reportOverlappingOverload]
    shape: Sequence[int], value: bool, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Bool]: ...
@overload
def full(shape: Sequence[int], value: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Int]: ...
@overload
def full(shape: Sequence[int], value: float, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]: ...
def full(shape: Sequence[int], value: float, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of this shape with one value everywhere; its kind is the value's."""
    kind = Bool if isinstance(value, bool) else Int if isinstance(value, int) else Float
    place = as_device(device)
    sizes = sizes_of("full", shape)
    place.backend.check_number(value, kind)
    primitive = getattr(place.backend, f"{kind.name}_full")(sizes, value, place)
    return wrap(ops_of(place.backend, kind), primitive)


def zeros(shape: Sequence[int], *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """A Float tensor of zeros."""
    return full(shape, 0.0, device=device)


def ones(shape: Sequence[int], *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """A Float tensor of ones."""
    return full(shape, 1.0, device=device)


def full_like(like: T, value: float) -> T:
    """A tensor of the shape, kind and device of another, with one value everywhere."""
    kind = like.kind
    python = {"float": float, "int": int, "bool": bool}[kind.name]
    like.backend.check_number(value, kind)
    primitive = getattr(like.backend, f"{kind.name}_full")(like.shape, python(value), like.device)
    return like._with(primitive)  # pyright: ignore[reportPrivateUsage]


def zeros_like(like: T) -> T:
    """Zeros of the shape, kind and device of another tensor."""
    return full_like(like, 0)


def ones_like(like: T) -> T:
    """Ones of the shape, kind and device of another tensor."""
    return full_like(like, 1)


def arange(
    start: int, stop: int | None = None, step: int = 1, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Int]:
    """The integers from `start` (zero, if only one number is given) up to but not including `stop`."""
    try:
        start, stop, step = index(start), None if stop is None else index(stop), index(step)
    except TypeError:
        raise KindError("arange takes integers; for Float values multiply: phlox.arange(n).float() * step") from None
    if step == 0:
        raise RangeError("arange: the step is zero")
    first, last = (0, start) if stop is None else (start, stop)
    place = as_device(device)
    return wrap(ops_of(place.backend, Int), place.backend.int_arange(first, last, step, place))


def eye(n: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """The identity matrix of n rows."""
    numbers = arange(n, device=device)
    return _hits(numbers, numbers)


def one_hot(indices: Tensor[Any, Any, Int], classes: int) -> Tensor[Any, Any, Float]:
    """For every index, `classes` floats along a new last axis: one at the index, zero elsewhere.

    An index that is negative or no less than `classes` is `IndexRangeError` (under a trace, a row of zeros).
    """
    if indices.kind is not Int:
        raise KindError(f"one_hot takes an Int tensor, got {indices.kind.__name__}")
    try:
        indices.backend.check_indices(indices.primitive, classes, from_end=False)
    except IndexRangeError as error:
        raise IndexRangeError(f"one_hot: {error}") from None
    return _hits(indices, arange(classes, device=indices.device))


def _hits(indices: Tensor[Any, Any, Int], numbers: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Float]:
    return (indices.expand_dims(-1) == numbers).float()
