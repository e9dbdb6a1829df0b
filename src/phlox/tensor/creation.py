"""Making tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from phlox.backend import Bool, DeviceLike, Float, Int, Kind, as_device
from phlox.backend.kind import kind_of_dtype
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.dispatch import ops_of
from phlox.tensor.tensor import Tensor, wrap


def tensor(data: Any, *, device: DeviceLike | None = None, kind: type[Kind] | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of these values: numbers, nested sequences of them, or anything that NumPy can read as an array.

    The kind is that of the values unless given; the element type is the backend's. Raises `RangeError` for a value that
    does not fit it, `ShapeError` for sequences of unequal length, `KindError` for values that are no numbers.

    >>> tensor([[1, 2], [3, 4]]).kind.__name__
    'Int'
    """
    place = as_device(device)
    if isinstance(data, Tensor):
        moved = data.to_device(place)
        return moved if kind is None or kind is moved.kind else _converted(moved, kind)
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
    if wanted is not found and wanted is Float:
        values = values.astype(np.float64)
        found = Float
    made = wrap(ops_of(place.backend, found), place.backend.from_host(values, found, place))
    return made if wanted is found else _converted(made, wanted)


def _converted(x: Tensor[Any, Any, Any], kind: type[Kind]) -> Tensor[Any, Any, Any]:
    return getattr(x, kind.name)()


@overload
def full(shape: Sequence[int], value: bool, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Bool]: ...
@overload
def full(shape: Sequence[int], value: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Int]: ...
@overload
def full(shape: Sequence[int], value: float, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]: ...
def full(shape: Sequence[int], value: float, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of this shape with one value everywhere; its kind is the value's."""
    kind = Bool if isinstance(value, bool) else Int if isinstance(value, int) else Float
    place = as_device(device)
    sizes = tuple(int(size) for size in shape)
    if min(sizes, default=0) < 0:
        raise ShapeError(f"a shape has no negative sizes, got {sizes}")
    primitive = getattr(place.backend, f"{kind.name}_full")(sizes, value, place)
    return wrap(ops_of(place.backend, kind), primitive)


def zeros(shape: Sequence[int], *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """A Float tensor of zeros."""
    return full(shape, 0.0, device=device)


def ones(shape: Sequence[int], *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """A Float tensor of ones."""
    return full(shape, 1.0, device=device)


def full_like(like: Tensor[Any, Any, Any], value: float) -> Tensor[Any, Any, Any]:
    """A tensor of the shape, kind and device of another, with one value everywhere."""
    kind = like.kind
    python = {"float": float, "int": int, "bool": bool}[kind.name]
    primitive = getattr(like.backend, f"{kind.name}_full")(like.shape, python(value), like.device)
    return wrap(ops_of(like.backend, kind), primitive)


def zeros_like(like: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    """Zeros of the shape, kind and device of another tensor."""
    return full_like(like, 0)


def ones_like(like: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    """Ones of the shape, kind and device of another tensor."""
    return full_like(like, 1)


def arange(
    start: int, stop: int | None = None, step: int = 1, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Int]:
    """The integers from `start` (zero, if only one number is given) up to but not including `stop`."""
    if not all(isinstance(bound, int) for bound in (start, 0 if stop is None else stop, step)):
        raise KindError("arange takes integers; for Float values multiply: phlox.arange(n).float() * step")
    if step == 0:
        raise RangeError("arange: the step is zero")
    first, last = (0, start) if stop is None else (start, stop)
    place = as_device(device)
    return wrap(ops_of(place.backend, Int), place.backend.int_arange(first, last, step, place))


def eye(n: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """The identity matrix of n rows."""
    return one_hot(arange(n, device=device), n)


def one_hot(indices: Tensor[Any, Any, Int], classes: int) -> Tensor[Any, Any, Float]:
    """For every index, `classes` floats along a new last axis: one at the index, zero elsewhere."""
    if indices.kind is not Int:
        raise KindError(f"one_hot takes an Int tensor, got {indices.kind.__name__}")
    return (indices.expand_dims(-1) == arange(classes, device=indices.device)).float()
