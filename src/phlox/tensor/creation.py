"""Creation of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, SupportsIndex, TypeAlias, TypeVar, cast, overload

import numpy as np

from phlox.backend import Bool, Device, DeviceLike, Float, Int, Kind, as_device
from phlox.backend.kind import kind_of_dtype
from phlox.backend.tracing.dimension import as_size, is_open, larger, ratio
from phlox.backend.tracing.scalar import TracedScalar
from phlox.backend.tracing.symbolic import all_ints, any_less, is_symbolic
from phlox.errors import IndexRangeError, KindError, RangeError, ShapeError
from phlox.tensor.dispatch import ops_of
from phlox.tensor.interop import copy_array, copy_if_aliased
from phlox.tensor.tensor import Tensor, wrap

T = TypeVar("T", bound=Tensor[Any, Any, Any])
K = TypeVar("K", bound=Kind)

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""The size of each axis. One integer means a tensor of rank 1."""

_PYTHON: dict[str, Callable[[Any], Any]] = {"float": float, "int": int, "bool": bool}
"""The Python type of the values of a kind."""


def tensor(data: Any, *, device: DeviceLike | None = None, kind: type[Kind] | None = None) -> Tensor[Any, Any, Any]:
    """Create a tensor from scalars, nested sequences of scalars, or an array of any library.

    The values are always copied; `from_dlpack` shares memory instead. `kind` defaults to the kind of the values. The
    backend chooses the dtype.

    Raises:
        RangeError: a value does not fit the dtype.
        ShapeError: nested sequences have unequal lengths.
        KindError: a value is not a number or boolean.

    >>> tensor([[1, 2], [3, 4]]).kind.__name__
    'Int'
    """
    target = as_device(device)
    if isinstance(data, Tensor):
        moved = cast("Tensor[Any, Any, Any]", data).to_device(target)
        return moved if kind is None or kind is moved.kind else getattr(moved, kind.name)()
    if hasattr(data, "__dlpack__") and not isinstance(data, (np.ndarray, np.generic)):
        copied = copy_array(data, target)
        return copied if kind is None or kind is copied.kind else getattr(copied, kind.name)()
    try:
        values: np.ndarray[Any, Any] = np.asarray(cast(Any, data))
    except ValueError as error:
        raise ShapeError(
            f"tensor: the values do not form an array; nested sequences must have equal lengths ({error})"
        ) from None
    except OverflowError as error:
        raise RangeError(f"tensor: {error}") from None
    if values is not data and isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(cast(Any, data)):
        raise KindError("tensor: a tensor cannot keep the mask of a masked array; give array.filled(value)")
    if values.dtype == object:
        if isinstance(data, TracedScalar):
            zero = tensor(0 if data.whole else 0.0, device=target)
            return tensor(zero + cast("Any", data), device=target, kind=kind)
        if values.size and all(isinstance(value, int) for value in values.flat):
            raise RangeError(f"tensor: {max(values.flat, key=abs)} does not fit an integer of any backend")
        raise KindError(
            f"tensor: cannot make a tensor from {type(cast(Any, data)).__name__}; give numbers or sequences of numbers"
        )
    own_kind = Float if values.size == 0 and not isinstance(data, np.ndarray) else kind_of_dtype(values.dtype)
    kind = own_kind if kind is None else kind
    if kind is not own_kind:
        values = _convert(values, own_kind, kind)
    return wrap(ops_of(target.backend, kind), copy_if_aliased(values, target.backend.from_host(values, kind, target)))


def _convert(values: np.ndarray[Any, Any], source: type[Kind], target: type[Kind]) -> np.ndarray[Any, Any]:
    """Convert host values to another kind. Only the fractional part of a float that becomes an integer is lost."""
    if target is Float:
        return values.astype(np.float64)
    if target is Bool:
        return values != 0
    if source is Bool:
        return values.astype(np.int64)
    whole = np.trunc(values.astype(np.float64))
    outside = ~(np.abs(whole) < 2.0**63)
    if outside.any():
        raise RangeError(f"tensor: {values[outside].flat[0]} does not fit an integer of any backend")
    return whole.astype(np.int64)


def sizes_of(name: str, shape: Any) -> tuple[int, ...]:
    """A given shape (one size, or a sequence of sizes) as a tuple of non-negative integers."""
    if shape.__class__ is tuple and all_ints(map(type, shape)) and min(shape, default=0) >= 0:
        return shape  # the usual case
    try:
        is_one = hasattr(shape, "__index__") or is_symbolic(shape)
        sizes = (as_size(shape),) if is_one else tuple(map(as_size, shape))
    except TypeError:
        raise ShapeError(f"{name}: a shape must be an integer or a sequence of integers, got {shape!r}") from None
    if any_less(sizes, 0):
        raise ShapeError(f"{name}: a shape cannot have negative sizes, got {sizes}")
    return sizes


@overload
def full(  # pyright: ignore[reportOverlappingOverload]
    shape: Shape, value: bool, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Bool]: ...
@overload
def full(shape: Shape, value: int, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Int]: ...
@overload
def full(shape: Shape, value: float, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]: ...
def full(shape: Shape, value: float, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of this shape, filled with one value. Its kind is the kind of the value.

    >>> full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    kind = Bool if isinstance(value, bool) else Int if isinstance(value, int) else Float
    target = as_device(device)
    sizes = sizes_of("full", shape)
    target.backend.check_scalar(value, kind)
    primitive = getattr(target.backend, f"{kind.name}_full")(sizes, value, target)
    return wrap(ops_of(target.backend, kind), primitive)


@overload
def zeros(shape: Shape, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]: ...
@overload
def zeros(shape: Shape, *, kind: type[K], device: DeviceLike | None = None) -> Tensor[Any, Any, K]: ...
def zeros(shape: Shape, *, kind: type[Kind] = Float, device: DeviceLike | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of zeros; of false if `kind` is Bool.

    >>> import phlox as px
    >>> zeros((2, 3)).shape, zeros(2, kind=px.Int).tolist()
    ((2, 3), [0, 0])
    """
    return full(shape, cast(float, _PYTHON[kind.name](0)), device=device)


@overload
def ones(shape: Shape, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]: ...
@overload
def ones(shape: Shape, *, kind: type[K], device: DeviceLike | None = None) -> Tensor[Any, Any, K]: ...
def ones(shape: Shape, *, kind: type[Kind] = Float, device: DeviceLike | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of ones; of true if `kind` is Bool.

    >>> ones((2, 2)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return full(shape, cast(float, _PYTHON[kind.name](1)), device=device)


def full_like(like: T, value: float) -> T:
    """A tensor with the shape, kind and device of another, filled with one value, which must be of that kind.

    >>> full_like(tensor([1.0, 2.0]), 0.5).tolist()
    [0.5, 0.5]
    """
    kind = like.kind
    if like._operand("full_like", value) is NotImplemented:  # pyright: ignore[reportPrivateUsage]
        raise KindError(f"full_like: the value must be a scalar, got {value!r}")
    like.backend.check_scalar(value, kind)
    return _filled_like(like, value)


def _filled_like(like: T, value: float) -> T:
    backend, name = like.backend, like.kind.name
    primitive = getattr(backend, f"{name}_full")(like.shape, _PYTHON[name](value), like.device)
    return like._with(backend.replicate_like(primitive, like.primitive))  # pyright: ignore[reportPrivateUsage]


def zeros_like(like: T) -> T:
    """Zeros with the shape, kind and device of another tensor.

    >>> zeros_like(tensor([1, 2])).tolist()
    [0, 0]
    """
    return _filled_like(like, 0)


def ones_like(like: T) -> T:
    """Ones with the shape, kind and device of another tensor.

    >>> ones_like(tensor([1, 2])).tolist()
    [1, 1]
    """
    return _filled_like(like, 1)


@overload
def arange(  # pyright: ignore[reportOverlappingOverload]
    start: int, stop: int | None = None, step: int = 1, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Int]: ...
@overload
def arange(
    start: float, stop: float | None = None, step: float = 1, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Float]: ...
def arange(
    start: float, stop: float | None = None, step: float = 1, *, device: DeviceLike | None = None
) -> Tensor[Any, Any, Any]:
    """Values from `start` (0 if only one argument is given) up to, but not including, `stop`, spaced by `step`.

    Integer arguments give an Int tensor. With a float argument the result is Float: ceil((stop - start) / step) values
    start + i * step, each rounded. Use `linspace` if the end points must be exact.

    >>> arange(4).tolist(), arange(1.0, 2.0, 0.25).tolist()
    ([0, 1, 2, 3], [1.0, 1.25, 1.5, 1.75])
    """
    first, last = (0, start) if stop is None else (start, stop)
    target = as_device(device)
    if any(isinstance(number, (float, np.floating)) for number in (first, last, step)):
        if step == 0 or not np.isfinite([first, last, step]).all():
            raise RangeError(f"arange: needs finite arguments and a nonzero step, got {first}, {last}, {step}")
        values = np.arange(float(first), float(last), float(step))
        return wrap(ops_of(target.backend, Float), target.backend.from_host(values, Float, target))
    try:
        whole = as_size(cast(Any, first)), as_size(cast(Any, last)), as_size(cast(Any, step))
    except TypeError:
        raise KindError(f"arange: arguments must be numbers, got {first!r}, {last!r} and {step!r}") from None
    if step == 0:
        raise RangeError("arange: the step is zero")
    return wrap(ops_of(target.backend, Int), target.backend.int_arange(*whole, target))


def linspace(
    start: float, stop: float, num: int, *, endpoint: bool = True, device: DeviceLike | None = None
) -> Tensor[Any, Any, Float]:
    """`num` evenly spaced floats from `start` to `stop`. `stop` is the last one unless `endpoint` is false.

    They are computed in float64 and rounded once, so they are the same on every backend.

    >>> linspace(0.0, 1.0, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    return _evenly_spaced("linspace", np.linspace, start, stop, num, endpoint, device)


def logspace(
    start: float, stop: float, num: int, *, base: float = 10.0, endpoint: bool = True, device: DeviceLike | None = None
) -> Tensor[Any, Any, Float]:
    """`base` to the powers `linspace(start, stop, num)`, rounded once.

    >>> logspace(0, 3, 4).tolist()
    [1.0, 10.0, 100.0, 1000.0]
    """
    if not base > 0.0:
        raise RangeError(f"logspace: the base must be positive, got {base}")
    return _evenly_spaced("logspace", partial(np.logspace, base=base), start, stop, num, endpoint, device)


def _evenly_spaced(
    name: str, fn: Any, start: float, stop: float, num: int, endpoint: bool, device: DeviceLike | None
) -> Tensor[Any, Any, Float]:
    sizes_of(name, (num,))
    target = as_device(device)
    if is_open(num) and name == "linspace":
        return _open_linspace(float(start), float(stop), num, endpoint, target)
    try:
        with np.errstate(all="ignore"):
            values = np.asarray(fn(float(start), float(stop), num, endpoint=endpoint), np.float64)
    except TypeError:
        raise KindError(f"{name}: start and stop must be numbers, got {start!r} and {stop!r}") from None
    if not np.isfinite(values).all():
        raise RangeError(f"{name}: values from {start} to {stop} do not fit in a float")
    return wrap(ops_of(target.backend, Float), target.backend.from_host(values, Float, target))


def _open_linspace(start: float, stop: float, num: int, endpoint: bool, device: Device) -> Tensor[Any, Any, Float]:
    """`linspace` for an open number of elements, computed by the backend in its own precision."""
    B = device.backend
    share = ratio(1, larger(num - 1, 1) if endpoint else num)
    positions = B.int_into_float(B.int_arange(0, num, 1, device))
    return wrap(ops_of(B, Float), B.float_add(B.float_mul(B.float_mul(positions, share), stop - start), start))


def eye(n: int, m: int | None = None, k: int = 0, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """The n x m matrix (n x n without m) with ones on the k-th diagonal; k > 0 is above the main diagonal.

    >>> eye(2).tolist(), eye(2, 3, k=1).tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """
    rows, columns = sizes_of("eye", (n, n if m is None else m))
    return _equality_matrix(arange(k, k + rows, device=device), arange(columns, device=device))


def tri(n: int, m: int | None = None, k: int = 0, *, device: DeviceLike | None = None) -> Tensor[Any, Any, Float]:
    """The n x m matrix (n x n without m) with ones on and below the k-th diagonal; see `Tensor.tril`.

    `tri(n).bool()` is the causal mask.

    >>> tri(3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    rows, columns = sizes_of("tri", (n, n if m is None else m))
    target = as_device(device)
    below = target.backend.bool_tri(rows, columns, min(max(k, -rows), columns), target)
    return wrap(ops_of(target.backend, Float), target.backend.bool_into_float(below))


def one_hot(indices: Tensor[Any, Any, Int], classes: int) -> Tensor[Any, Any, Float]:
    """Encode indices [...] as one-hot vectors [..., classes], with one at the index and zero elsewhere.

    Raises `IndexRangeError` unless 0 <= index < classes. During tracing such an index gives a row of zeros instead.

    >>> one_hot(tensor([2, 0]), 3).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    if indices.kind is not Int:
        raise KindError(f"one_hot takes an Int tensor, got {indices.kind.__name__}")
    try:
        indices.backend.check_indices(indices.primitive, classes, from_end=False)
    except IndexRangeError as error:
        raise IndexRangeError(f"one_hot: {error}") from None
    return _equality_matrix(indices, arange(classes, device=indices.device))


def _equality_matrix(indices: Tensor[Any, Any, Int], numbers: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Float]:
    return (indices.expand_dims(-1) == numbers).float()
