"""Norms of matrices, and values computed from singular values (rank, condition number)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from phlox.backend import Float, Int
from phlox.errors import KindError, ShapeError
from phlox.tensor.functions import at_full_precision
from phlox.tensor.tensor import Tensor

Order: TypeAlias = float | Literal["fro", "nuc"]
_SUMMED = {1: -2, -1: -2, float("inf"): -1, float("-inf"): -1}


@at_full_precision
def matrix_norm(x: Tensor, ord: Order = "fro", *, axis: tuple[int, int] = (-2, -1), keepdims: bool = False) -> Tensor:
    """A norm of matrices [..., m, n], or of matrices along two other axes: [...].

    Args:
        x: the matrices.
        ord: `"fro"`: the root of the sum of squares; `"nuc"`: the sum of the singular values; 2 and -2: the largest and
            the smallest singular value; 1 and -1: the largest and the smallest column sum of magnitudes; inf and -inf:
            the same for row sums.
        axis: the axes of rows and columns.
        keepdims: keep these axes with size one.

    The gradient of `"fro"` at a zero matrix is zero. For a matrix without elements only "fro" and "nuc" are defined.

    >>> import phlox as px
    >>> x = px.tensor([[3.0, 0.0], [0.0, -4.0]])
    >>> [px.linalg.matrix_norm(x, ord).item() for ord in ("fro", "nuc", 2, 1)]
    [5.0, 7.0, 4.0, 4.0]
    """
    if x.kind is not Float:
        raise KindError(f"matrix_norm takes Float tensors, got {x.kind.__name__}; convert with .float() first")
    if len(axis) != 2 or x.ndim < 2:
        raise ShapeError(f"matrix_norm: needs two axes of a tensor of shape {x.shape}, got {axis}")
    rows, columns = (x._axis("matrix_norm", dim) for dim in axis)  # pyright: ignore[reportPrivateUsage]
    if rows == columns:
        raise ShapeError(f"matrix_norm: needs two different axes of shape {x.shape}, got {axis}")
    batch_axes = tuple(dim for dim in range(x.ndim) if dim not in (rows, columns))
    y = x.permute_dims((*batch_axes, rows, columns))
    y = _norm(y, ord)
    return y.expand_dims(tuple(sorted((rows, columns)))) if keepdims else y


def vector_norm(
    x: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2.0
) -> Tensor:
    """The norm of order `ord` over some axes, or all, flattened to one vector; see `Tensor.norm`.

    >>> import phlox as px
    >>> px.linalg.vector_norm(px.tensor([[3.0, 4.0], [0.0, 0.0]]), axis=1).tolist()
    [5.0, 0.0]
    """
    return x.norm(ord, axis, keepdims=keepdims)


def norm(
    x: Tensor, ord: Order | None = None, *, axis: int | tuple[int, int] | None = None, keepdims: bool = False
) -> Tensor:
    """The norm of vectors or matrices, with the defaults of NumPy and PyTorch.

    One axis gives `vector_norm`, two axes give `matrix_norm`. Without an axis, a matrix gives `matrix_norm` and a
    vector `vector_norm`. Without `ord` it is the root of the sum of squares, for any rank.

    >>> import phlox as px
    >>> px.linalg.norm(px.tensor([3.0, 4.0])).item(), px.linalg.norm(px.tensor([[3.0], [4.0]]), 1).item()
    (5.0, 7.0)
    """
    if ord is None:
        return x.norm(axis=axis, keepdims=keepdims)
    if isinstance(axis, tuple) or (axis is None and x.ndim == 2):
        return matrix_norm(x, ord, axis=(-2, -1) if axis is None else axis, keepdims=keepdims)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"norm: order {ord!r} of a tensor of shape {x.shape} needs one or two axes")
    if isinstance(ord, str):
        raise ShapeError(f"norm: order {ord!r} is a matrix norm; give two axes of the tensor of shape {x.shape}")
    return x.norm(ord, axis, keepdims=keepdims)


def _norm(x: Tensor, ord: Order) -> Tensor:
    if ord == "fro":
        return x.norm(axis=(-2, -1))
    if ord == "nuc":
        return svdvals(x).sum(-1)
    if 0 in x.shape[-2:]:
        raise ShapeError(f"matrix_norm: order {ord!r} is undefined for a matrix of shape {x.shape[-2:]}")
    if ord in (2, -2):
        s = svdvals(x)
        return s[..., 0] if ord == 2 else s[..., -1]
    if ord not in _SUMMED:
        raise ShapeError(f"matrix_norm: ord must be 'fro', 'nuc', 2, -2, 1, -1, inf or -inf, got {ord!r}")
    sums = x.abs().sum(_SUMMED[ord])
    return sums.max(-1) if ord > 0 else sums.min(-1)


def svdvals(x: Tensor) -> Tensor:
    """The singular values of matrices [..., m, n] in descending order: [..., min(m, n)].

    >>> import phlox as px
    >>> px.linalg.svdvals(px.tensor([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    check_matrices("svdvals", x)
    return x._apply("svdvals")  # pyright: ignore[reportPrivateUsage]


def matrix_rank(x: Tensor, *, rtol: float | None = None) -> Tensor[Any, Any, Int]:
    """The rank of each matrix [..., m, n]: the number of singular values above rtol times the largest, Int [...].

    `rtol` is max(m, n) times the machine epsilon of the float dtype by default.

    >>> import phlox as px
    >>> px.linalg.matrix_rank(px.tensor([[1.0, 2.0], [2.0, 4.0]])).item()
    1
    """
    check_matrices("matrix_rank", x)
    s = svdvals(x).detach()
    return (s > s[..., :1] * default_rtol(x, rtol)).int().sum(-1)


@at_full_precision
def cond(x: Tensor, p: Order | None = None) -> Tensor:
    """The condition number of matrices: the norm of order `p` times that of the inverse.

    For p None or 2 it is the largest singular value over the smallest, for matrices of any shape; infinity if singular.
    Other orders need square matrices, invert them, and raise `LinalgError` if one is singular.

    >>> import phlox as px
    >>> px.linalg.cond(px.tensor([[4.0, 0.0], [0.0, 2.0]])).item()
    2.0
    """
    check_matrices("cond", x)
    if 0 in x.shape[-2:]:
        raise ShapeError(f"cond: a matrix of shape {x.shape[-2:]} has no condition number")
    if p is None or p in (2, -2):
        s = svdvals(x)
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    check_square("cond", x)
    return matrix_norm(x, p) * matrix_norm(x._apply("inv"), p)  # pyright: ignore[reportPrivateUsage]


# --- shared checks

_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def default_rtol(x: Tensor, rtol: float | None) -> float:
    """The relative tolerance: a singular value below it times the largest counts as zero."""
    if rtol is None:
        return max(1, *x.shape[-2:]) * _EPSILON[x.backend.float_element]
    return float(rtol)


def check_matrices(name: str, *tensors: Tensor) -> None:
    """Raise `KindError` or `ShapeError` unless all are Float matrices."""
    for x in tensors:
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{name} takes tensors, got {type(x).__name__}")
        if x.kind is not Float:
            raise KindError(f"{name} takes Float tensors, got {x.kind.__name__}; convert with .float() first")
        if x.ndim < 2:
            raise ShapeError(f"{name}: takes matrices [..., m, n], got shape {x.shape}")


def check_square(name: str, x: Tensor) -> None:
    """Raise `KindError` or `ShapeError` unless x is a Float square matrix, or a batch of them."""
    check_matrices(name, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name}: takes square matrices [..., n, n], got shape {x.shape}")
