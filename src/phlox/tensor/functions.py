"""Functions of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from phlox.backend import Backend, Bool
from phlox.backend.contract.widening import map_nested
from phlox.backend.pytree import container_of_class
from phlox.backend.tracing.dimension import broadcast_sizes
from phlox.errors import KindError, RangeError, ShapeError
from phlox.host.dtypes import HALF_ELEMENTS
from phlox.tensor.backend_promotion import promote
from phlox.tensor.base import Number
from phlox.tensor.dispatch import ops_of
from phlox.tensor.explain import failure, mixed, shown, type_shown
from phlox.tensor.noted_means import means
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
    """Select from `if_true` where the condition is true, else from `if_false`. All three broadcast.

    The gradient of the branch that is not selected is zero, even where its value is NaN.

    >>> import phlox as px
    >>> px.where(px.tensor([True, False]), px.tensor([1, 2]), 0).tolist()
    [1, 0]
    """
    if condition.kind is not Bool:
        raise KindError(f"where: the condition must be a Bool tensor, got {condition.kind.__name__}")
    branches: list[Tensor[Any, Any, Any]] = [x for x in (if_true, if_false) if isinstance(x, Tensor)]
    if not branches:
        numbers = (if_true, float(if_false)) if isinstance(if_true, float) else (if_true, if_false)
        if isinstance(if_false, float):
            numbers = (float(if_true), if_false)
        return where(condition, wrap_scalar(condition, numbers[0]), numbers[1])
    condition, *branches = promote("where", [condition, *branches])
    like, backend = branches[0], condition.backend
    ops = like._ops  # pyright: ignore[reportPrivateUsage]
    values = [like._operand("where", x) for x in (if_true, if_false)]  # pyright: ignore[reportPrivateUsage]
    try:
        return wrap(ops, backend.where(condition.primitive, *values))
    except Exception as error:
        for x, value in zip((if_true, if_false), values, strict=True):
            if value is NotImplemented:
                raise KindError(f"where: both branches must be tensors or scalars, got {shown(x)}") from None
        raise failure("where", ops, (condition.primitive, *values), error) from error


def wrap_scalar(like: Tensor[Any, Any, Any], value: Any) -> Tensor[Any, Any, Any]:
    """A Python scalar as a tensor of rank 0, on the backend and device of `like`."""
    from phlox.tensor.creation import tensor

    return tensor(value, device=like.device)


def _promote_same_kind(name: str, tensors: Sequence[T]) -> Sequence[T]:
    """Check that tensors have one kind, and promote them to one backend."""
    if not tensors:
        raise ShapeError(f"{name}: no tensors given")
    if [x for x in tensors if not isinstance(x, Tensor)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        types = ", ".join(type_shown(x) for x in tensors)
        raise KindError(f"{name}: takes a sequence of tensors, got {types}")
    ops = tensors[0]._ops  # pyright: ignore[reportPrivateUsage]
    for other in tensors[1:]:
        if other._ops.kind is not ops.kind:  # pyright: ignore[reportPrivateUsage]
            raise mixed(name, ops, other._ops)  # pyright: ignore[reportPrivateUsage]
    return promote(name, tensors)


def concat(tensors: Sequence[T], axis: int | None = 0) -> T:
    """Join tensors along an existing axis; the other axes must be equal. With axis None, all are flattened first.

    >>> import phlox as px
    >>> px.concat([px.tensor([1, 2]), px.tensor([3])]).tolist()
    [1, 2, 3]
    """
    tensors = _promote_same_kind("concat", tensors)
    if axis is None:
        return concat([x.flatten() for x in tensors])
    first = tensors[0]
    axis = first._axis("concat", axis)  # pyright: ignore[reportPrivateUsage]
    for other in tensors:
        a, b = list(first.shape), list(other.shape)
        if len(a) != len(b) or a[:axis] + a[axis + 1 :] != b[:axis] + b[axis + 1 :]:
            raise ShapeError(f"concat: shapes {first.shape} and {other.shape} differ in an axis other than {axis}")
    return _join(tensors, axis)


def _join(tensors: Sequence[T], axis: int) -> T:
    first, arrays = tensors[0], [x.primitive for x in tensors]
    try:
        return first._with(first.backend.concat(arrays, axis))  # pyright: ignore[reportPrivateUsage]
    except Exception as error:
        raise failure("concat", first._ops, (*arrays, axis), error) from error  # pyright: ignore[reportPrivateUsage]


def stack(tensors: Sequence[T], axis: int = 0) -> T:
    """Join tensors of equal shapes along a new axis.

    >>> import phlox as px
    >>> px.stack([px.tensor([1, 2]), px.tensor([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    tensors = _promote_same_kind("stack", tensors)
    shape = tensors[0].shape
    for other in tensors[1:]:
        if other.shape != shape:
            raise ShapeError(f"stack: shapes {shape} and {other.shape} differ")
    return _join([x.expand_dims(axis) for x in tensors], axis if axis >= 0 else axis + len(shape) + 1)


def broadcast_arrays(*tensors: T) -> list[T]:
    """Broadcast tensors to one shape; their kinds may differ.

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
        shape = broadcast_sizes(x.shape for x in tensors)
    except ValueError:
        shapes = ", ".join(str(x.shape) for x in tensors)
        raise ShapeError(f"broadcast_arrays: shapes {shapes} do not broadcast to one another") from None
    return [x.broadcast_to(shape) for x in promote("broadcast_arrays", tensors)]


def meshgrid(*tensors: T, indexing: Literal["xy", "ij"] = "xy") -> list[T]:
    """Coordinate grids from coordinate vectors: one tensor per axis.

    With `"ij"`, n vectors of sizes s1, s2, ..., sn give n tensors of shape (s1, s2, ..., sn). With `"xy"`, the default
    as in the Array API, the first two axes are swapped. A tensor of rank 0 counts as a vector of size one.

    >>> import phlox as px
    >>> x, y = meshgrid(px.arange(3), px.arange(2))
    >>> x.tolist(), y.tolist()
    ([[0, 1, 2], [0, 1, 2]], [[0, 0, 0], [1, 1, 1]])
    """
    if indexing not in ("xy", "ij"):
        raise RangeError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    if any(x.ndim > 1 for x in tensors):
        shapes = ", ".join(str(x.shape) for x in tensors)
        raise ShapeError(f"meshgrid: takes tensors of rank 1, got shapes {shapes}")
    rank = len(tensors)
    order = [*range(rank)]
    if indexing == "xy" and rank > 1:
        order[:2] = 1, 0
    return broadcast_arrays(
        *(
            x.reshape(tuple(-1 if axis == own_axis else 1 for axis in range(rank)))
            for x, own_axis in zip(tensors, order, strict=True)
        )
    )


def maximum(lhs: T, rhs: T | Number) -> T:
    """The greater of two values, elementwise. NaN if either is NaN.

    >>> import phlox as px
    >>> px.maximum(px.tensor([1, 5]), px.tensor([3, 4])).tolist()
    [3, 5]
    """
    return lhs.maximum(rhs)


def minimum(lhs: T, rhs: T | Number) -> T:
    """The lesser of two values, elementwise. NaN if either is NaN.

    >>> import phlox as px
    >>> px.minimum(px.tensor([1, 5]), px.tensor([3, 4])).tolist()
    [1, 4]
    """
    return lhs.minimum(rhs)


def matmul(lhs: T, rhs: T) -> T:
    """The matrix product; see `Tensor.matmul`.

    >>> import phlox as px
    >>> px.matmul(px.ones((2, 3)), px.ones((3, 4))).shape
    (2, 4)
    """
    return lhs.matmul(rhs)


class lift:
    """Turn a function of a backend's arrays into a function of tensors, differentiated by the engine's own autodiff.

    Tensor arguments are unwrapped; other arguments are passed unchanged; arrays in the result are wrapped.

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
        positions = [position for position, x in enumerate(arguments) if isinstance(x, Tensor)]

        def run(*arrays: Any) -> Any:
            filled = list(arguments)
            for position, array in zip(positions, arrays, strict=True):
                filled[position] = array
            return self.fn(*filled)

        native = self.fn if len(positions) == len(arguments) else run
        result = backend.call_native(native, *(x.primitive for x in tensors))
        return _wrap_result(tensors[0], result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, lift) and self.fn == other.fn

    def __hash__(self) -> int:
        return hash((lift, self.fn))

    def __repr__(self) -> str:
        return f"lift({getattr(self.fn, '__name__', self.fn)!s})"


def _wrap_result(like: Tensor[Any, Any, Any], result: Any) -> Any:
    container = container_of_class(cast("type[Any]", type(result)))
    if container is not None:
        return container.build(result, [_wrap_result(like, part) for _, part in container.items(result)])
    backend = like.backend
    return wrap(ops_of(backend, backend.kind_of(result)), result)


# --- half precision


def at_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of tensors: at half precision it computes in f32 and rounds the result once.

    Then the sum of squares in a loss does not overflow before the mean is taken, and differences are not computed from
    rounded values.
    """

    @wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        # One operand is enough: operands of one operation have one float dtype.
        if args and isinstance(args[0], Tensor) and args[0].backend.float_element not in HALF_ELEMENTS:
            return function(*args, **kwargs)
        originals: dict[Backend, Backend] = {}

        def widen(x: Any) -> Any:
            backend = _backend_of(x)
            if backend is None or backend.float_element not in HALF_ELEMENTS:
                return x
            wide = x.to_full_precision()
            originals[wide.backend] = backend
            return wide

        def narrow(x: Any) -> Any:
            backend = _backend_of(x)
            if backend not in originals:
                return x
            narrowed = x.from_full_precision(originals[backend])
            if (recorder := means()) is not None:
                recorder.follow(x, narrowed)
            return narrowed

        widened: Any = map_nested(widen, args)
        return map_nested(narrow, function(*widened, **{name: map_nested(widen, x) for name, x in kwargs.items()}))

    return operation


def _backend_of(x: object) -> Backend | None:
    return x.backend if isinstance(x, Tensor) else None
