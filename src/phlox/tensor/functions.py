"""Functions of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

import numpy as np

from phlox.backend import Backend, Bool
from phlox.backend.contract.widening import each
from phlox.errors import KindError, RangeError, ShapeError
from phlox.host.dtypes import HALF_ELEMENTS
from phlox.tensor.backend_promotion import together
from phlox.tensor.base import Number
from phlox.tensor.dispatch import ops_of
from phlox.tensor.explain import failure, mixed, shown
from phlox.tensor.tensor import Tensor, wrap

T = TypeVar("T", bound=Tensor[Any, Any, Any])
P = ParamSpec("P")
R = TypeVar("R")


@overload
def where(condition: Tensor[Any, Any, Bool], if_true: T, if_false: T | Number) -> T: ...
@overload
def where(condition: Tensor[Any, Any, Bool], if_true: Number, if_false: T) -> T: ...
@overload
def where(condition: Tensor[Any, Any, Bool], if_true: Number, if_false: Number) -> Tensor[Any, Any, Any]: ...
def where(condition: Tensor[Any, Any, Bool], if_true: Any, if_false: Any) -> Any:
    """From `if_true` where the condition holds, from `if_false` elsewhere; all three broadcast.

    The gradient of the branch not taken is zero, even where its value is NaN.
    """
    if condition.kind is not Bool:
        raise KindError(f"where: the condition must be a Bool tensor, got {condition.kind.__name__}")
    branches: list[Tensor[Any, Any, Any]] = [x for x in (if_true, if_false) if isinstance(x, Tensor)]
    if not branches:
        numbers = (if_true, float(if_false)) if isinstance(if_true, float) else (if_true, if_false)
        if isinstance(if_false, float):
            numbers = (float(if_true), if_false)
        return where(condition, wrap_number(condition, numbers[0]), numbers[1])
    condition, *branches = together("where", [condition, *branches])
    like, backend = branches[0], condition.backend
    ops = like._ops  # pyright: ignore[reportPrivateUsage]
    values = [like._operand("where", x) for x in (if_true, if_false)]  # pyright: ignore[reportPrivateUsage]
    try:
        return wrap(ops, backend.where(condition.primitive, *values))
    except Exception as error:
        for x, value in zip((if_true, if_false), values, strict=True):
            if value is NotImplemented:
                raise KindError(f"where: what is chosen from is a tensor or a number, got {shown(x)}") from None
        raise failure("where", ops, (condition.primitive, *values), error) from error


def wrap_number(like: Tensor[Any, Any, Any], value: Any) -> Tensor[Any, Any, Any]:
    """A Python number as a tensor of rank 0 beside another."""
    from phlox.tensor.creation import tensor

    return tensor(value, device=like.device)


def _same(name: str, tensors: Sequence[T]) -> Sequence[T]:
    """Tensors of one kind, on one backend."""
    if not tensors:
        raise ShapeError(f"{name}: no tensors given")
    if not all(isinstance(x, Tensor) for x in tensors):  # pyright: ignore[reportUnnecessaryIsInstance]
        given = ", ".join(type(x).__name__ for x in tensors)
        raise KindError(f"{name}: takes a sequence of tensors, got {given}")
    first = tensors[0]
    for other in tensors[1:]:
        if other.kind is not first.kind:
            raise mixed(name, first._ops, other._ops)  # pyright: ignore[reportPrivateUsage]
    return together(name, tensors)


def concat(tensors: Sequence[T], axis: int | None = 0) -> T:
    """Joined along an axis that is there; the other axes must agree. Without an axis, all in reading order."""
    tensors = _same("concat", tensors)
    if axis is None:
        return concat([x.flatten() for x in tensors])
    first = tensors[0]
    place = first._axis("concat", axis)  # pyright: ignore[reportPrivateUsage]
    for other in tensors:
        a, b = list(first.shape), list(other.shape)
        if len(a) != len(b) or a[:place] + a[place + 1 :] != b[:place] + b[place + 1 :]:
            raise ShapeError(f"concat: shapes {first.shape} and {other.shape} differ beside axis {place}")
    arrays = [x.primitive for x in tensors]
    try:
        return first._with(first.backend.concat(arrays, place))  # pyright: ignore[reportPrivateUsage]
    except Exception as error:
        raise failure("concat", first._ops, (*arrays, place), error) from error  # pyright: ignore[reportPrivateUsage]


def stack(tensors: Sequence[T], axis: int = 0) -> T:
    """Joined along a new axis; the shapes must be the same."""
    tensors = _same("stack", tensors)
    first = tensors[0]
    for other in tensors:
        if other.shape != first.shape:
            raise ShapeError(f"stack: shapes {first.shape} and {other.shape} differ")
    return concat([x.expand_dims(axis) for x in tensors], axis if axis >= 0 else axis + first.ndim + 1)


def broadcast_arrays(*tensors: T) -> list[T]:
    """Tensors broadcast to one shape; their kinds may differ.

    >>> import phlox as px
    >>> [x.shape for x in broadcast_arrays(px.zeros((3, 1)), px.zeros((2,)))]
    [(3, 2), (3, 2)]
    """
    if not tensors:
        return []
    for x in tensors:
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"broadcast_arrays takes tensors, got {shown(x)}")
    try:
        shape = np.broadcast_shapes(*(x.shape for x in tensors))
    except ValueError:
        given = ", ".join(str(x.shape) for x in tensors)
        raise ShapeError(f"broadcast_arrays: shapes {given} do not broadcast to one another") from None
    return [x.broadcast_to(shape) for x in together("broadcast_arrays", tensors)]


def meshgrid(*tensors: T, indexing: Literal["xy", "ij"] = "xy") -> list[T]:
    """The coordinates of the points of a grid, one tensor an axis, of the points along the axes.

    With `"ij"`, n tensors of sizes s1, s2, ..., sn give n tensors of shape (s1, s2, ..., sn); with `"xy"`, which is the
    Array API's default, the first two of these axes are exchanged. Tensors of rank 0 count as one point.

    >>> import phlox as px
    >>> x, y = meshgrid(px.arange(3), px.arange(2))
    >>> x.tolist(), y.tolist()
    ([[0, 1, 2], [0, 1, 2]], [[0, 0, 0], [1, 1, 1]])
    """
    if indexing not in ("xy", "ij"):
        raise RangeError(f"meshgrid: indexing is 'xy' or 'ij', got {indexing!r}")
    if any(x.ndim > 1 for x in tensors):
        given = ", ".join(str(x.shape) for x in tensors)
        raise ShapeError(f"meshgrid: takes tensors of rank 1, got shapes {given}")
    rank = len(tensors)
    order = [*range(rank)]
    if indexing == "xy" and rank > 1:
        order[:2] = 1, 0
    return broadcast_arrays(
        *(
            x.reshape(tuple(-1 if axis == place else 1 for axis in range(rank)))
            for x, place in zip(tensors, order, strict=True)
        )
    )


def maximum(lhs: T, rhs: T | Number) -> T:
    """The greater of two values, elementwise; NaN wins."""
    return lhs.maximum(rhs)


def minimum(lhs: T, rhs: T | Number) -> T:
    """The lesser of two values, elementwise; NaN wins."""
    return lhs.minimum(rhs)


def matmul(lhs: T, rhs: T) -> T:
    """The matrix product; see `Tensor.matmul`."""
    return lhs.matmul(rhs)


class lift:
    """A function on a backend's own arrays as a function on tensors, differentiable by the engine's own autodiff.

    Tensor arguments are unwrapped, everything else is passed as it is; arrays in the result are wrapped. On `Autodiff`
    the function must return one array.

    >>> import numpy as np, phlox as px
    >>> px.lift(np.cbrt)(px.tensor([8.0])).item()
    2.0
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, *arguments: Any) -> Any:
        tensors: list[Tensor[Any, Any, Any]] = [x for x in arguments if isinstance(x, Tensor)]
        if not tensors:
            raise KindError(f"lift: {self!r} was called without a tensor, so its backend is unknown")
        backend = tensors[0].backend
        for other in tensors[1:]:
            if other.backend is not backend:
                raise mixed("lift", tensors[0]._ops, other._ops)  # pyright: ignore[reportPrivateUsage]
        places = [place for place, x in enumerate(arguments) if isinstance(x, Tensor)]

        def run(*arrays: Any) -> Any:
            filled = list(arguments)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            return self.fn(*filled)

        native = self.fn if len(places) == len(arguments) else run
        result = backend.call_native(native, *(x.primitive for x in tensors))
        return _wrapped(tensors[0], result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, lift) and self.fn == other.fn

    def __hash__(self) -> int:
        return hash((lift, self.fn))

    def __repr__(self) -> str:
        return f"lift({getattr(self.fn, '__name__', self.fn)!s})"


def _wrapped(like: Tensor[Any, Any, Any], result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        several = [_wrapped(like, one) for one in cast("Sequence[Any]", result)]
        return several if isinstance(result, list) else tuple(several)
    if isinstance(result, dict):
        return {name: _wrapped(like, one) for name, one in cast("dict[Any, Any]", result).items()}
    backend = like.backend
    return wrap(ops_of(backend, backend.kind_of(result)), result)


# --- half precision


def at_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """The function of tensors, its steps taken in f32 where they are of half precision, and the result rounded once.

    So the sum of squares of a loss does not overflow on the way to its mean, nor is a difference taken of numbers that
    have been rounded.
    """

    @wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        # One operand speaks for all: tensors that meet have floats of one type.
        if args and isinstance(args[0], Tensor) and args[0].backend.float_element not in HALF_ELEMENTS:
            return function(*args, **kwargs)
        back: dict[Backend, Backend] = {}

        def grow(x: Any) -> Any:
            backend = _backend_of(x)
            if backend is None or backend.float_element not in HALF_ELEMENTS:
                return x
            wide = x.to_full_precision()
            back[wide.backend] = backend
            return wide

        def shrink(x: Any) -> Any:
            backend = _backend_of(x)
            return x.from_full_precision(back[backend]) if backend in back else x

        given: Any = each(grow, args)
        return each(shrink, function(*given, **{name: each(grow, x) for name, x in kwargs.items()}))

    return operation


def _backend_of(x: object) -> Backend | None:
    return x.backend if isinstance(x, Tensor) else None
