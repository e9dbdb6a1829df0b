# ruff: noqa: E501
# pyright: standard
"""Linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox import linalg
from phlox.testing.conformance.row import INF, Row, Sample, bools, exact, ints, normal, other, scipy_linalg, torch

# --- einsum and other products

_EINSUMS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij , jk": ((2, 3), (3, 4)),
    "ij,kj->ki": ((2, 3), (4, 3)),
    "ii": ((3, 3),),
    "ii->i": ((3, 3),),
    "iij->ji": ((3, 3, 2),),
    "ijij->ji": ((2, 3, 2, 3),),
    "ij->": ((2, 3),),
    "ba": ((2, 3),),
    "ij->ij": ((2, 3),),
    "...i->...": ((2, 3, 4),),
    "...ij,...jk->...ik": ((5, 1, 2, 3), (4, 3, 2)),
    "...i,i...": ((2, 3), (3, 2)),
    "i,j->ij": ((2,), (3,)),
    ",": ((), ()),
    "ij,ij->ij": ((2, 3), (2, 3)),
    "ij,ij->i": ((2, 3), (2, 3)),
    "bij,bjk->kbi": ((2, 3, 4), (2, 4, 5)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "ikjl,lmkn->imnj": ((2, 3, 2, 4), (4, 2, 3, 2)),
    "iij,jjk->ik": ((2, 2, 3), (3, 3, 4)),
    "ij,ik->j": ((2, 3), (2, 4)),
    "ijk,ijl,ijm->klm": ((2, 3, 2), (2, 3, 3), (2, 3, 2)),
    "ab,bc,cd,de->ae": ((2, 3), (3, 4), (4, 2), (2, 5)),
    "ijk,jkl,lm,mi->": ((2, 3, 2), (3, 2, 4), (4, 3), (3, 2)),
    "ab,bc,cd,de,ef,fg,ga->": ((2, 2),) * 7,
    "ij,jk->ki, sizes of one": ((2, 1), (3, 4)),
    "ij,j->i, sizes of one": ((1, 2), (1,)),
    "ij,jk->ik, nothing summed": ((2, 0), (0, 4)),
    "bij,bjk->bik, no matrices": ((0, 2, 3), (0, 3, 4)),
}  # fmt: skip


def _einsum_row(name: str, shapes: tuple[tuple[int, ...], ...]) -> Row:
    notation = name.partition(", ")[0] if "sizes" in name or "nothing" in name or "no " in name else name
    sample = tuple((normal, other)[i % 2](*shape) for i, shape in enumerate(shapes))
    return Row(
        f"einsum {name}",
        lambda *x: px.einsum(notation, *x),
        lambda *x: np.einsum(notation, *x),
        (sample,),
        factor=4,
    )


_VECTORS = ((normal(4), other(4)), (normal(1), other(1)), (normal(0), other(0)))
_PAIR = (normal(2, 3), other(2, 3))

PRODUCTS = [
    *(_einsum_row(name, shapes) for name, shapes in _EINSUMS.items()),
    Row("einsum, one operand twice", lambda x: px.einsum("ij,jk,kl->il", x, x, x), lambda x: x @ x @ x, ((normal(3, 3),),)),
    Row("einsum, constant 0", lambda x, y: px.einsum("bij,bkj->ik", x, y), lambda x, y: np.einsum("bij,bkj->ik", x, y),
        ((normal(2, 3, 4), normal(2, 5, 4)),), constant=(0,)),
    Row("einsum of ints", lambda x, y: px.einsum("ij,jk->k", x, y), lambda x, y: np.einsum("ij,jk->k", x, y),
        ((ints(2, 3), ints(3, 4)), (ints(2, 0), ints(0, 4))), gradient=False),
    Row("dot", lambda x, y: x.dot(y), np.dot, _VECTORS),
    Row("px.dot", lambda x, y: px.dot(x, y), np.dot, _VECTORS[:1]),
    Row("int dot", lambda x, y: px.dot(x, y), np.dot, ((ints(5), ints(5, low=-5)),), gradient=False),
    Row("vdot", lambda x, y: px.vdot(x, y), np.vdot, (_PAIR, (normal(2, 3), normal(3, 2)), (normal(0, 2), normal(0)), (normal(), other()))),
    Row("vecdot", lambda x, y: px.vecdot(x, y), lambda x, y: (x * y).sum(-1),
        (_PAIR, (normal(2, 3, 4), normal(3, 4)), (normal(3), normal(2, 3)), (normal(2, 0), other(2, 0)), (normal(2, 1), other(2, 1)))),
    Row("vecdot axis", lambda x, y: px.vecdot(x, y, axis=-2), lambda x, y: (x * y).sum(-2), ((normal(2, 3, 4), normal(3, 1)),)),
    Row("inner", lambda x, y: px.inner(x, y), np.inner, ((normal(2, 3), normal(4, 3)), _VECTORS[0], (normal(2, 2, 3), normal(3)))),
    Row("outer", lambda x, y: x.outer(y), np.outer, ((normal(3), normal(4)), (normal(0), normal(2)))),
    Row("px.outer", lambda x, y: px.outer(x, y), np.outer, ((normal(3), normal(4)),)),
    Row("tensordot", lambda x, y: px.tensordot(x, y), np.tensordot, ((normal(2, 3, 4), normal(3, 4, 5)), (normal(2, 0, 4), normal(0, 4)))),
    *(
        Row(f"tensordot {axes}", lambda x, y, a=axes: px.tensordot(x, y, axes=a), lambda x, y, a=axes: np.tensordot(x, y, axes=a), (sample,))
        for axes, sample in (
            (0, (normal(2, 3), normal(4))), (1, (normal(2, 3), normal(3, 4))), (((1,), (0,)), (normal(2, 3), normal(3, 4))),
            (((2, 0), (0, 1)), (normal(2, 3, 4), normal(4, 2, 3))), ((0, -1), (normal(2, 3), normal(4, 2))),
            (((0, 1, 2), (2, 0, 1)), (normal(2, 3, 4), normal(3, 4, 2))),
        )
    ),
    Row("kron", lambda x, y: px.kron(x, y), np.kron,
        ((normal(2, 3), normal(3, 2)), (normal(2), normal(3)), (normal(2, 3), normal(4)), (normal(), normal(2)), (normal(2, 2, 2), normal(2, 3)),
         (normal(0, 2), normal(3, 1)))),
    Row("int kron", lambda x, y: px.kron(x, y), np.kron, ((ints(2, 3), ints(3, 2)),), gradient=False),
    Row("cross", lambda x, y: px.cross(x, y), np.cross, ((normal(3), other(3)), (normal(2, 3), other(2, 3)), (normal(0, 3), other(0, 3)))),
    Row("cross broadcast", lambda x, y: px.cross(x, y), lambda x, y: np.cross(x, np.broadcast_to(y, x.shape)), ((normal(2, 4, 3), normal(3)),)),
    Row("cross axis", lambda x, y: px.cross(x, y, axis=0), lambda x, y: np.cross(x, y, axis=0), ((normal(3, 2), other(3, 2)),)),
    Row("multi_dot", lambda *x: linalg.multi_dot(x), lambda *x: np.linalg.multi_dot(x),
        ((normal(2, 3), normal(3, 5), normal(5, 2)), (normal(3), normal(3, 5), normal(5, 2)), (normal(2, 3), normal(3, 5), normal(5)),
         (normal(3), normal(3, 3), other(3)), (normal(2, 3), normal(3, 2)))),
    Row("multi_dot of vectors", lambda x, y: linalg.multi_dot([x, y]), np.dot, _VECTORS[:1]),
    Row("multi_dot of one", lambda x: linalg.multi_dot([x]), lambda x: x, ((normal(2, 3),),)),
    Row("multi_dot of many", lambda *x: linalg.multi_dot(x), lambda *x: np.linalg.multi_dot(x), (tuple(normal(3, 3) for _ in range(8)),), factor=40),
    Row("int vector @ matrix", lambda x, y: x @ y, np.matmul, ((ints(3), ints(3, 4)), (ints(2, 3), ints(3))), gradient=False),
]  # fmt: skip

# --- diagonals

_OFFSETS = (0, 1, -2, 7)


def _diag_embed(x: Any, offset: int) -> Any:
    size = x.shape[-1] + abs(offset)
    y = np.zeros((*x.shape[:-1], size, size), x.dtype)
    rows = np.arange(x.shape[-1])
    y[..., rows + max(0, -offset), rows + max(0, offset)] = x
    return y


DIAGONALS = [
    *(
        Row(f"diagonal {k}", lambda x, k=k: x.diagonal(k), lambda x, k=k: x.diagonal(k, -2, -1),
            ((normal(4, 4),), (normal(2, 3, 5),), (normal(5, 3),), (normal(0, 3),), (normal(0, 2, 2),)))
        for k in _OFFSETS
    ),
    *(
        Row(f"diag_embed {k}", lambda x, k=k: px.diag_embed(x, k), lambda x, k=k: _diag_embed(x, k),
            ((normal(3),), (normal(2, 4),), (normal(1),), (normal(0),), (normal(0, 2),)))
        for k in _OFFSETS
    ),
    Row("diagonal axes", lambda x: x.diagonal(1, axis1=2, axis2=0), lambda x: x.diagonal(1, 2, 0), ((normal(2, 3, 4),),)),
    Row("px.diagonal", lambda x: px.diagonal(x, -1), lambda x: x.diagonal(-1), ((normal(3, 3),),)),
    Row("int diagonal", lambda x: px.diagonal(x, 1), lambda x: x.diagonal(1), ((ints(3, 4),),), gradient=False),
    Row("bool diagonal", lambda x: px.diagonal(x), lambda x: x.diagonal(), ((bools(3, 4),),), gradient=False),
    Row("int diag_embed", lambda x: px.diag_embed(x, -1), lambda x: _diag_embed(x, -1), ((ints(3),),), gradient=False),
    Row("bool diag_embed", lambda x: px.diag_embed(x), lambda x: _diag_embed(x, 0), ((bools(3),),), gradient=False),
    Row("diag of a vector", lambda x: px.diag(x, 1), lambda x: np.diag(x, 1), ((normal(3),),)),
    Row("diag of a matrix", lambda x: px.diag(x, 1), lambda x: np.diag(x, 1), ((normal(3, 4),),)),
    Row("trace", lambda x: x.trace(), lambda x: x.trace(0, -2, -1), ((normal(3, 3),), (normal(2, 3, 4),), (normal(0, 0),), (normal(2, 0, 3),))),
    Row("trace offset", lambda x: px.trace(x, 1, axis1=0, axis2=1), lambda x: x.trace(1), ((normal(3, 4, 2),),)),
    Row("int trace", lambda x: x.trace(), lambda x: x.trace(dtype=np.int32), ((ints(3, 3),),), gradient=False),
    Row("matrix_transpose", lambda x: px.matrix_transpose(x), lambda x: x.mT, ((normal(2, 3, 4),),)),
]  # fmt: skip

# --- samples of matrices


def _well(*shape: int) -> np.ndarray[Any, Any]:
    """Well-conditioned matrices with distinct singular values."""
    k = min(shape[-2:])
    rng_left, rng_right = normal(*shape[:-2], shape[-2], shape[-2]), other(*shape[:-2], shape[-1], shape[-1])
    u, v = np.linalg.qr(rng_left)[0], np.linalg.qr(rng_right)[0]
    return exact((u[..., :k] * np.linspace(3.0, 1.0, k)) @ v.mT[..., :k, :]) if 0 not in shape else np.zeros(shape)


def _positive(*shape: int) -> np.ndarray[Any, Any]:
    """Symmetric positive definite matrices with distinct eigenvalues."""
    q = np.linalg.qr(normal(*shape))[0]
    y = (q * np.linspace(0.5, 3.0, max(shape[-1], 1))[: shape[-1]]) @ q.mT
    return exact((y + y.mT) / 2)


def _symmetric(x: Any) -> Any:
    return (x + x.mT) / 2


_SQUARE = ((_well(3, 3),), (_well(2, 4, 4),), (_well(1, 1),), (normal(0, 0),), (normal(2, 0, 0),), (normal(0, 3, 3),))
_POSITIVE = (
    (_positive(3, 3),),
    (_positive(2, 4, 4),),
    (exact([[2.0]]),),
    (normal(0, 0),),
    (normal(2, 0, 0),),
    (normal(0, 3, 3),),
)
_TALL = ((_well(4, 3),), (_well(2, 3, 2),), (normal(3, 0),), (normal(0, 4, 3),))
_WIDE = ((_well(2, 4),), (_well(2, 1, 3),), (normal(0, 3),))
_SINGULAR = exact([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
_RANK_ONE = exact([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [-1.0, -2.0, -3.0]])

_SYSTEMS: tuple[Sample, ...] = (
    (_well(3, 3), normal(3, 2)),
    (_well(2, 4, 4), normal(4, 3)),
    (_well(3, 3), normal(3)),
    (_well(3, 3), normal(2, 3, 2)),
    (_well(2, 4, 4), normal(4)),
    (_well(2, 2, 2), normal(2, 2)),
    (_well(1, 1), normal(1, 1)),
    (normal(0, 0), normal(0, 2)),
    (_well(3, 3), normal(3, 0)),
    (normal(0, 3, 3), normal(3, 2)),
)


def _solve(a: Any, b: Any) -> Any:
    return np.linalg.solve(a, b) if b.ndim != 1 else np.linalg.solve(a, b[:, None])[..., 0]


def _triangle(a: Any, upper: bool, unit: bool) -> Any:
    a = np.triu(a) if upper else np.tril(a)
    return a - a * np.eye(a.shape[-1]) + np.eye(a.shape[-1]) if unit else a


def _lstsq(a: Any, b: Any) -> Any:
    return np.linalg.pinv(a) @ b


SOLUTIONS = [
    Row("solve", lambda a, b: linalg.solve(a, b), _solve, _SYSTEMS, factor=20),
    *(
        Row(f"solve, constant {constant}", lambda a, b: linalg.solve(a, b), _solve, _SYSTEMS[:1], constant=constant, factor=20)
        for constant in ((0,), (1,))
    ),
    Row("solve by pivoting", lambda a, b: linalg.solve(a, b), _solve, ((exact([[0.0, 1.0], [2.0, 3.0]]), normal(2, 2)),), factor=4),
    *(
        Row(f"solve_triangular, upper {upper}, unit {unit}",
            lambda a, b, upper=upper, unit=unit: linalg.solve_triangular(a, b, upper=upper, unit_diagonal=unit),
            lambda a, b, upper=upper, unit=unit: _solve(_triangle(a, upper, unit), b), tuple((exact(a * 0.5 + np.eye(a.shape[-1])), b) for a, b in _SYSTEMS[:5]),
            factor=40)
        for upper in (False, True)
        for unit in (False, True)
    ),
    Row("inv", lambda a: linalg.inv(a), np.linalg.inv, _SQUARE, factor=10),
    Row("pinv", lambda a: linalg.pinv(a), np.linalg.pinv, (*_TALL, *_WIDE, _SQUARE[0]), factor=10),
    Row("pinv wide", lambda a: linalg.pinv(a), np.linalg.pinv, _WIDE, factor=10),
    Row("pinv of rank one", lambda a: linalg.pinv(a, rtol=1e-3), lambda a: np.linalg.pinv(a, rcond=1e-3), (), ((_RANK_ONE,),), factor=10),
    Row("pinv at constant rank", lambda x, y: linalg.pinv(x.outer(y), rtol=1e-3), lambda x, y: np.linalg.pinv(np.outer(x, y), rcond=1e-3),
        ((exact([1.0, -2.0, 0.5]), exact([0.5, 1.0])),), factor=20),
    Row("lstsq", lambda a, b: linalg.lstsq(a, b).solution, _lstsq,
        ((_well(4, 3), normal(4, 2)), (_well(2, 4), normal(2, 3)), (_well(4, 3), normal(4)), (_well(2, 3, 2), normal(3, 2)), (normal(0, 3), normal(0, 2))),
        factor=20),
    Row("lstsq residuals", lambda a, b: linalg.lstsq(a, b).residuals, lambda a, b: ((a @ _lstsq(a, b) - b) ** 2).sum(-2 if b.ndim > 1 else -1),
        ((_well(4, 3), normal(4, 2)), (_well(4, 3), normal(4))), factor=20),
    Row("lstsq rank", lambda a, b: linalg.lstsq(a, b).rank, lambda a, b: np.linalg.matrix_rank(a).astype(np.int32),
        ((_well(2, 4, 3), normal(4, 2)),), gradient=False),
    Row("lstsq singular values", lambda a, b: linalg.lstsq(a, b).singular_values, lambda a, b: np.linalg.svd(a, compute_uv=False),
        ((_well(4, 3), normal(4, 2)),), constant=(1,), factor=4),
]  # fmt: skip

# --- functions of matrices


def _expm(a: Any) -> Any:
    return np.asarray(scipy_linalg.expm(a)) if a.size else a


_ORDERS: Any = ("fro", "nuc", 2, -2, 1, -1, INF, -INF)
_NORMS: Any = (
    (None, None, normal(2, 3, 4)),
    (None, 1, normal(2, 3)),
    (None, (0, 1), normal(2, 3)),
    (1, None, normal(3)),
    (1, None, normal(2, 3)),
    (1, 0, normal(2, 3)),
    ("fro", (0, 2), normal(2, 3, 4)),
    (2, (0, 1), normal(2, 3)),
)
_CONDITIONS: Any = (None, -2, 1, "fro")

FUNCTIONS = [
    Row("det", lambda a: linalg.det(a), np.linalg.det, _SQUARE, ((np.stack([_SINGULAR, _RANK_ONE]),),), factor=20),
    Row("det of singular matrices", lambda a: linalg.det(a), np.linalg.det, ((_SINGULAR,), (np.stack([_RANK_ONE, np.zeros((3, 3))]),)),
        torch=lambda a: _minors(a), factor=40),
    Row("det at equal singular values", lambda a: linalg.det(a), np.linalg.det, ((exact(2.0 * np.eye(3)),),), factor=4),
    Row("slogdet", lambda a: linalg.slogdet(a).logabsdet, lambda a: np.linalg.slogdet(a)[1], _SQUARE, ((_RANK_ONE * 0.0,),), factor=10),
    Row("slogdet sign", lambda a: linalg.slogdet(a).sign, lambda a: np.asarray(np.linalg.slogdet(a)[0]), _SQUARE, ((_RANK_ONE * 0.0,),), gradient=False),
    *(
        Row(f"matrix_power {n}", lambda a, n=n: linalg.matrix_power(a, n), lambda a, n=n: np.linalg.matrix_power(a, n), _SQUARE, factor=20)
        for n in (1, 2, 5, -2)
    ),
    Row("matrix_power 0", lambda a: linalg.matrix_power(a, 0), lambda a: np.linalg.matrix_power(a, 0), _SQUARE, gradient=False),
    Row("matrix_exp", lambda a: linalg.matrix_exp(a), _expm, _SQUARE, ((exact(normal(3, 3) * 4.0),),), factor=20),
    *(
        Row(f"matrix_norm {ord}", lambda a, ord=ord: linalg.matrix_norm(a, ord), lambda a, ord=ord: np.linalg.norm(a, ord, (-2, -1)),
            (_TALL[0], _SQUARE[1], _WIDE[0], (normal(0, 2, 3),)), factor=8)
        for ord in _ORDERS
    ),
    *(
        Row(f"norm {ord} {axis}", lambda a, o=ord, x=axis: linalg.norm(a, o, axis=x), lambda a, o=ord, x=axis: np.linalg.norm(a, o, x), ((a,),), factor=4)
        for ord, axis, a in _NORMS
    ),
    Row("vector_norm", lambda a: linalg.vector_norm(a, axis=(0, 1), keepdims=True, ord=3.0),
        lambda a: (np.abs(a) ** 3.0).sum((0, 1), keepdims=True) ** (1 / 3), ((normal(2, 3, 4),),), factor=4),
    Row("matrix_norm axes", lambda a: linalg.matrix_norm(a, 1, axis=(2, 0), keepdims=True),
        lambda a: np.linalg.norm(a, 1, (2, 0), keepdims=True), ((normal(2, 3, 4),),)),
    Row("matrix_norm of nothing", lambda a: linalg.matrix_norm(a), lambda a: np.linalg.norm(a, "fro", (-2, -1)), ((normal(2, 0, 3),),)),
    Row("matrix_norm of zeros", lambda a: linalg.matrix_norm(a), lambda a: np.linalg.norm(a), ((np.zeros((2, 3)),),),
        torch=lambda a: torch.linalg.matrix_norm(a), second=False),
    Row("matrix_rank", lambda a: linalg.matrix_rank(a), lambda a: np.asarray(np.linalg.matrix_rank(a), np.int32),
        (*_SQUARE, *_TALL, *_WIDE, (_RANK_ONE,), (np.stack([_RANK_ONE * 0.0, _SINGULAR]),)), gradient=False),
    Row("matrix_rank rtol", lambda a: linalg.matrix_rank(a, rtol=0.5), lambda a: np.asarray(np.linalg.matrix_rank(a, rtol=0.5), np.int32),
        ((exact(np.diag([4.0, 3.0, 1.0])),),), gradient=False),
    *(
        Row(f"cond {p}", lambda a, p=p: linalg.cond(a, p), lambda a, p=p: np.linalg.cond(a, p), _SQUARE[:3], factor=20)
        for p in _CONDITIONS
    ),
    Row("cond of tall matrices", lambda a: linalg.cond(a), lambda a: np.linalg.cond(a), _TALL[:2], factor=10),
]  # fmt: skip


def _minors(a: Any) -> Any:
    """The determinant of 3 x 3 matrices by their first rows."""
    rows = [a[..., i, :] for i in range(3)]
    return (rows[0] * torch.linalg.cross(rows[1], rows[2])).sum(-1)


# --- decompositions, with the signs of the contract


def _signs(v: Any) -> Any:
    size = np.abs(v)
    first = (
        (size >= 0.99 * size.max(-2, keepdims=True, initial=0.0)).argmax(-2)[..., None, :] if 0 not in v.shape else None
    )
    return 1.0 if first is None else np.where(np.take_along_axis(v, first, -2) < 0, -1.0, 1.0)


def _qr(a: Any) -> Any:
    q, r = np.linalg.qr(a)
    signs = np.where(np.diagonal(r, 0, -2, -1) < 0, -1.0, 1.0)
    return q * signs[..., None, :], r * signs[..., :, None]


def _svd(a: Any) -> Any:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    signs = _signs(u)
    return u * signs, s, vh * (signs if np.ndim(signs) == 0 else signs.mT)


def _eigh(a: Any) -> Any:
    w, v = np.linalg.eigh(_symmetric(a))
    return w, v * _signs(v)


def _parts(
    name: str, call: Callable[..., Any], reference: Callable[..., Any], parts: Any, *samples: Sample, **options: Any
) -> list[Row]:
    return [
        Row(f"{name} {part}", lambda a, i=i: call(a)[i], lambda a, i=i: reference(a)[i], samples, **options)
        for i, part in enumerate(parts)
    ]


_THIN: Any = {"full_matrices": False}
_ROTATED = exact([[0.6, -0.8, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]])

DECOMPOSITIONS = [
    Row("cholesky", lambda a: linalg.cholesky(a), lambda a: np.linalg.cholesky(_symmetric(a)), _POSITIVE, factor=10),
    Row("cholesky upper", lambda a: linalg.cholesky(a, upper=True), lambda a: np.linalg.cholesky(_symmetric(a)).mT, _POSITIVE[:2], factor=10),
    Row("cholesky of what is not symmetric", lambda a: linalg.cholesky(a), lambda a: np.linalg.cholesky(_symmetric(a)),
        ((exact([[4.0, 1.0], [0.0, 3.0]]),),), factor=4),
    *_parts("qr", lambda a: linalg.qr(a), _qr, "QR", _SQUARE[0], *_TALL, _SQUARE[3], factor=40),
    *_parts("qr wide", lambda a: linalg.qr(a), _qr, "QR", *_WIDE, factor=40),
    *_parts("qr complete wide", lambda a: linalg.qr(a, mode="complete"), _qr, "QR", *_WIDE, factor=40),
    Row("qr both", lambda a: linalg.qr(a).Q @ linalg.qr(a).R * linalg.qr(a).R[..., :1, :], lambda a: a * _qr(a)[1][..., :1, :], _TALL[:2], factor=40),
    Row("qr complete", lambda a: linalg.qr(a, mode="complete").Q @ linalg.qr(a, mode="complete").R, lambda a: a, (), _TALL, factor=10),
    Row("qr complete R", lambda a: linalg.qr(a, mode="complete").R, lambda a: _complete_r(a), (), _TALL, factor=10),
    Row("qr complete Q' Q", lambda a: _gram(linalg.qr(a, mode="complete").Q), lambda a: np.eye(a.shape[-2]) + np.zeros((*a.shape[:-2], 1, 1)), (), _TALL, factor=10),
    *_parts("svd", lambda a: linalg.svd(a, **_THIN), _svd, ("U", "S", "Vh"), _SQUARE[0], *_TALL, _SQUARE[3], factor=40),
    *_parts("svd wide", lambda a: linalg.svd(a, **_THIN), _svd, ("U", "S", "Vh"), *_WIDE, factor=40),
    Row("svd joined", lambda a: _joined(linalg.svd(a, **_THIN)), lambda a: _svd(a)[0] * _svd(a)[1][..., None, :] @ _svd(a)[2], (_SQUARE[0], _TALL[0]), factor=20),
    Row("svd full", lambda a: _rejoined(linalg.svd(a)), lambda a: a, (), (*_TALL, *_WIDE, *_SQUARE), factor=10),
    Row("svd full U' U", lambda a: _gram(linalg.svd(a).U), lambda a: np.eye(a.shape[-2]) + np.zeros((*a.shape[:-2], 1, 1)), (), (*_TALL, *_WIDE), factor=10),
    Row("svd full, gradient of S", lambda a: linalg.svd(a).S, lambda a: _svd(a)[1], (_TALL[0], _WIDE[0]), factor=10),
    Row("polar factor at equal singular values", lambda a: _polar(linalg.svd(a, **_THIN)), lambda a: scipy_linalg.polar(a)[0],
        ((_ROTATED,), (exact(2.0 * np.eye(3)),)), second=False, factor=20),
    Row("svdvals", lambda a: linalg.svdvals(a), lambda a: np.linalg.svd(a, compute_uv=False), (*_TALL, *_WIDE, *_SQUARE), factor=10),
    *_parts("eigh", lambda a: linalg.eigh(a), _eigh, ("values", "vectors"), *_POSITIVE, factor=40),
    Row("eigenspace beside equal eigenvalues", lambda a: _first_projector(linalg.eigh(a)), lambda a: _first_projector(_eigh(a)),
        ((exact(np.diag([1.0, 4.0, 4.0])),),), second=False, factor=20),
    Row("eigvalsh", lambda a: linalg.eigvalsh(a), lambda a: np.linalg.eigvalsh(_symmetric(a)), _POSITIVE, factor=10),
]  # fmt: skip


def _gram(x: Any) -> Any:
    return x.mT @ x


def _complete_r(a: Any) -> Any:
    *batch, m, n = a.shape
    return np.concatenate([_qr(a)[1], np.zeros((*batch, m - n, n))], -2)


def _joined(svd: Any) -> Any:
    return svd.U * svd.S[..., None, :] @ svd.Vh


def _polar(svd: Any) -> Any:
    return svd.U @ svd.Vh


def _rejoined(svd: Any) -> Any:
    k = svd.S.shape[-1]
    return svd.U[..., :, :k] * svd.S[..., None, :] @ svd.Vh[..., :k, :]


def _first_projector(eigh: Any) -> Any:
    v = eigh[1][..., :, :1]
    return v @ v.mT


ROWS: list[Row] = [*PRODUCTS, *DIAGONALS, *SOLUTIONS, *FUNCTIONS, *DECOMPOSITIONS]
