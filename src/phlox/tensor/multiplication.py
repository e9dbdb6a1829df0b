"""Products of tensors, and diagonals of matrices, as functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np

from phlox.backend import Bool, Float
from phlox.backend.contract import matrices
from phlox.errors import KindError, ShapeError
from phlox.tensor.einsum import einsum
from phlox.tensor.functions import concat
from phlox.tensor.products import rounded
from phlox.tensor.tensor import Tensor

T = TypeVar("T", bound=Tensor[Any, Any, Any])


def dot(lhs: T, rhs: T) -> T:
    """The dot product of two vectors [n].

    >>> import phlox as px
    >>> px.dot(px.tensor([1.0, 2.0]), px.tensor([3.0, 4.0])).item()
    11.0
    """
    return lhs.dot(rhs)


def vdot(lhs: T, rhs: T) -> T:
    """The dot product of two flattened tensors, which must have the same number of elements.

    >>> import phlox as px
    >>> px.vdot(px.tensor([[1.0, 2.0]]), px.tensor([3.0, 4.0])).item()
    11.0
    """
    if lhs.size != rhs.size:
        raise ShapeError(f"vdot: shapes {lhs.shape} and {rhs.shape} have different numbers of elements")
    return lhs.reshape(-1 if lhs.size else 0).dot(rhs.reshape(-1 if rhs.size else 0))


def vecdot(lhs: T, rhs: T, *, axis: int = -1) -> T:
    """The dot product along an axis; the other axes broadcast.

    >>> import phlox as px
    >>> x = px.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> px.vecdot(x, x).tolist()
    [5.0, 25.0]
    """
    operands: list[T] = []
    for x in (lhs, rhs):
        position = x._axis("vecdot", axis)  # pyright: ignore[reportPrivateUsage]
        other_axes = tuple(dim for dim in range(x.ndim) if dim != position)
        operands.append(x if position == x.ndim - 1 else x.permute_dims((*other_axes, position)))
    sizes = [x.shape[-1] for x in operands]
    if sizes[0] != sizes[1]:
        raise ShapeError(f"vecdot: shapes {lhs.shape} and {rhs.shape} differ in axis {axis}")
    _broadcast("vecdot", lhs.shape, rhs.shape)
    return einsum("...i,...i->...", *operands)


def inner(lhs: T, rhs: T) -> T:
    """The dot product over the last axes: [..., n] and [*, n] give [..., *].

    >>> import phlox as px
    >>> px.inner(px.ones((2, 4)), px.ones((3, 4))).shape
    (2, 3)
    """
    if lhs.ndim == 0 or rhs.ndim == 0:
        raise ShapeError(f"inner: shapes {lhs.shape} and {rhs.shape}; both operands need an axis")
    return lhs._contract("inner", rhs, ((lhs.ndim - 1,), (rhs.ndim - 1,)))  # pyright: ignore[reportPrivateUsage]


def outer(lhs: T, rhs: T) -> T:
    """The products of all pairs of elements of two vectors, [m] and [n]: [m, n].

    >>> import phlox as px
    >>> px.outer(px.tensor([1, 2]), px.tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return lhs.outer(rhs)


def tensordot(lhs: T, rhs: T, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2) -> T:
    """Tensor contraction: sum products over the last `axes` axes of `lhs` and the first of `rhs`, or over listed pairs.

    The result has the other axes of `lhs`, then those of `rhs`, in order. Raises `ShapeError` if sizes differ.

    >>> import phlox as px
    >>> px.tensordot(px.ones((2, 3, 4)), px.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
    (2, 5)
    """
    if isinstance(axes, int):
        if not 0 <= axes <= min(lhs.ndim, rhs.ndim):
            raise ShapeError(f"tensordot: shapes {lhs.shape} and {rhs.shape} have no {axes} axes to sum over")
        pairs = (tuple(range(lhs.ndim - axes, lhs.ndim)), tuple(range(axes)))
    else:
        left, right = ((listed,) if isinstance(listed, int) else tuple(listed) for listed in axes)
        if len(left) != len(right):
            raise ShapeError(f"tensordot: axes {left} and {right} do not form pairs")
        pairs = (
            tuple(lhs._axis("tensordot", axis) for axis in left),  # pyright: ignore[reportPrivateUsage]
            tuple(rhs._axis("tensordot", axis) for axis in right),  # pyright: ignore[reportPrivateUsage]
        )
        if any(len(set(summed)) < len(summed) for summed in pairs):
            raise ShapeError(f"tensordot: {axes} repeats an axis")
    return lhs._contract("tensordot", rhs, pairs)  # pyright: ignore[reportPrivateUsage]


def kron(lhs: T, rhs: T) -> T:
    """The Kronecker product: every element of `lhs` replaced by its product with all of `rhs`.

    The sizes of each axis multiply; the tensor of lower rank gets leading axes of size one.

    >>> import phlox as px
    >>> px.kron(px.tensor([1.0, 10.0]), px.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0, 10.0, 20.0]
    """
    rank = max(lhs.ndim, rhs.ndim)
    shapes = [(1,) * (rank - x.ndim) + x.shape for x in (lhs, rhs)]
    product = lhs.reshape(shapes[0])._contract("kron", rhs.reshape(shapes[1]), ((), ()))  # pyright: ignore[reportPrivateUsage]
    order = tuple(axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair)
    return product.permute_dims(order).reshape(tuple(a * b for a, b in zip(*shapes, strict=True)))


def cross(lhs: T, rhs: T, *, axis: int = -1) -> T:
    """The cross product of 3-vectors along an axis of size 3; the other axes broadcast.

    >>> import phlox as px
    >>> px.cross(px.tensor([1, 0, 0]), px.tensor([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    shape = _broadcast("cross", lhs.shape, rhs.shape)
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"cross: axis {axis} is out of range for shapes {lhs.shape} and {rhs.shape}")
    position = axis % len(shape)
    if any(x.shape[position - len(shape) :][:1] != (3,) for x in (lhs, rhs)):
        raise ShapeError(f"cross: axis {axis} must have size 3, got shapes {lhs.shape} and {rhs.shape}")

    def turned(x: T, by: int) -> T:
        parts = [x[(*(slice(None),) * position, part)] for part in (slice(by, None), slice(0, by))]
        return concat(parts, position)

    x, y = (x if x.shape == shape else x.broadcast_to(shape) for x in (lhs, rhs))
    return rounded(turned(x, 1) * turned(y, 2)) - rounded(turned(x, 2) * turned(y, 1))


def multi_dot(tensors: Sequence[T]) -> T:
    """The product of a chain of matrices, in the multiplication order with the fewest operations.

    The first and the last may be vectors. (With more than six factors the order is chosen greedily.)

    >>> import phlox as px
    >>> px.linalg.multi_dot([px.ones((2, 9)), px.ones((9, 9)), px.ones((9,))]).tolist()
    [81.0, 81.0]
    """
    if not tensors:
        raise ShapeError("multi_dot: no tensors given")
    if len(tensors) == 1:
        return tensors[0]
    ends = (tensors[0].ndim, tensors[-1].ndim)
    if not all(1 <= rank <= 2 for rank in ends) or any(x.ndim != 2 for x in tensors[1:-1]):
        shapes = ", ".join(str(x.shape) for x in tensors)
        raise ShapeError(f"multi_dot: takes matrices, with vectors only at the ends, got shapes {shapes}")
    for x, y in itertools.pairwise(tensors):
        if x.shape[-1] != y.shape[0]:
            raise ShapeError(f"multi_dot: shapes {x.shape} and {y.shape} do not fit")
    names = [chr(0x4E00 + i) for i in range(len(tensors) + 1)]  # the longest run of letters that Unicode has
    terms = [a + b for a, b in itertools.pairwise(names)]
    terms[0], terms[-1] = terms[0][-ends[0] :], terms[-1][: ends[1]]
    result = (terms[0][0] if ends[0] == 2 else "") + (terms[-1][-1] if ends[1] == 2 else "")
    return einsum(f"{','.join(terms)}->{result}", *tensors)


def matrix_transpose(x: T) -> T:
    """Swap the last two axes; the same as `x.mT`.

    >>> import phlox as px
    >>> px.matrix_transpose(px.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    return x.mT


def diagonal(x: T, offset: int = 0, *, axis1: int = -2, axis2: int = -1) -> T:
    """The elements (i, i + offset) of two axes, as a new last axis in place of the two. `offset` may be negative.

    >>> import phlox as px
    >>> px.diagonal(px.tensor([[1.0, 2.0], [3.0, 4.0]]), 1).tolist()
    [2.0]
    """
    return x.diagonal(offset, axis1=axis1, axis2=axis2)


def trace(x: T, offset: int = 0, *, axis1: int = -2, axis2: int = -1) -> T:
    """The sum of a diagonal; see `diagonal`.

    >>> import phlox as px
    >>> px.trace(px.tensor([[1.0, 2.0], [3.0, 4.0]])).item()
    5.0
    """
    return x.trace(offset, axis1=axis1, axis2=axis2)


def diag_embed(x: T, offset: int = 0) -> T:
    """Square matrices [..., n + |offset|, n + |offset|] with vectors [..., n] on a diagonal and zeros elsewhere.

    >>> import phlox as px
    >>> px.diag_embed(px.tensor([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    if x.ndim < 1:
        raise ShapeError("diag_embed: needs a tensor of vectors [..., n], got shape ()")
    try:
        offset = index(offset)
    except TypeError:
        raise KindError(f"diag_embed: the offset must be an integer, got {offset!r}") from None
    zero = False if x.kind is Bool else 0.0 if x.kind is Float else 0
    return x._with(matrices.diagonal_matrix(x.backend, x.primitive, offset, zero))  # pyright: ignore[reportPrivateUsage]


def diag(x: T, offset: int = 0) -> T:
    """The diagonal of a matrix, or the matrix with a given diagonal and zeros elsewhere.

    >>> import phlox as px
    >>> px.diag(px.tensor([1.0, 2.0])).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    if x.ndim not in (1, 2):
        raise ShapeError(f"diag: takes a vector or a matrix, got shape {x.shape}; use diagonal or diag_embed")
    return diag_embed(x, offset) if x.ndim == 1 else x.diagonal(offset)


def _broadcast(name: str, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(lhs, rhs)
    except ValueError:
        raise ShapeError(f"{name}: shapes {lhs} and {rhs} do not broadcast") from None
