# ruff: noqa: E501
# pyright: standard, reportCallIssue=false, reportArgumentType=false
"""Reductions and scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.testing.conformance.row import INF, NAN, Row, bools, exact, ints, normal, same, sp, torch

_WAYS: tuple[tuple[Any, bool], ...] = (
    (None, False),
    (None, True),
    (0, False),
    (-1, True),
    ((0, 2), False),
    ((), False),
)


def _ways(name: str, reference: Callable[..., Any], **options: Any) -> list[Row]:
    return [
        Row(
            f"{name} {axis} {keepdims}",
            lambda x, a=axis, k=keepdims: getattr(x, name)(a, keepdims=k),
            lambda x, a=axis, k=keepdims: reference(x, axis=a, keepdims=k),
            ((normal(2, 3, 4),),),
            **options,
        )
        for axis, keepdims in _WAYS
    ]


def _var(x: Any, axis: Any, keepdims: bool) -> Any:
    return np.var(x, axis=axis, keepdims=keepdims)


def _mean(x: Any, axis: Any, keepdims: bool) -> Any:
    return np.mean(x, axis=axis, keepdims=keepdims)


_EMPTY, _ONE = (normal(0, 3),), (normal(),)
_TIES = exact([[1.0, 3.0, 3.0, 2.0], [2.0, 2.0, 2.0, 2.0], [-1.0, -1.0, -2.0, -3.0]])
_UNDEFINED = exact([[1.0, NAN, 3.0], [INF, -INF, 0.0], [-INF, -INF, -INF], [2.0, INF, INF]])

SUMS = [
    *_ways("sum", np.sum),
    *_ways("mean", _mean),
    *_ways("var", _var, factor=4),
    *_ways("prod", np.prod, factor=4),
    *_ways("max", np.max, second=False),
    *_ways("min", np.min, second=False),
    *_ways("logsumexp", lambda x, axis, keepdims: sp.logsumexp(x, axis=axis, keepdims=keepdims)),
    Row("sum of nothing", lambda x: x.sum(0), lambda x: x.sum(0), (_EMPTY,)),
    Row("sum beside nothing", lambda x: x.sum(1), lambda x: x.sum(1), (_EMPTY,)),
    Row("prod of nothing", lambda x: x.prod(0), lambda x: x.prod(0), (_EMPTY,)),
    Row("prod beside nothing", lambda x: x.prod(1), lambda x: x.prod(1), (_EMPTY,)),
    Row("mean of nothing", lambda x: x.mean(0), lambda x: np.full(3, NAN), (), (_EMPTY,)),
    Row("var of nothing", lambda x: x.var(0), lambda x: np.full(3, NAN), (), (_EMPTY,)),
    Row("max beside nothing", lambda x: x.max(1), lambda x: np.zeros(0), (_EMPTY,)),
    *(
        Row(f"{name} of one", lambda x, n=name: getattr(x, n)(), f, (_ONE,))
        for name, f in {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min}.items()
    ),
    Row("var correction", lambda x: x.var(1, correction=1), lambda x: x.var(1, ddof=1), ((normal(3, 4),),), factor=4),
    Row("var correction keepdims", lambda x: x.var((0, 1), correction=1.0, keepdims=True),
        lambda x: x.var((0, 1), ddof=1, keepdims=True), ((normal(3, 4),),), factor=4),
    Row("var of too few", lambda x: x.var(1, correction=1), lambda x: np.full(3, NAN), (), ((normal(3, 1),),)),
    Row("var of far too few", lambda x: x.var(1, correction=3), lambda x: np.full(3, NAN), (), ((normal(3, 2),),)),
    Row("var far from zero", lambda x: x.var(), np.var, ((exact(normal(50) + 1000.0),),), factor=100),
    Row("std", lambda x: x.std(1), lambda x: x.std(1), ((normal(3, 4),),), factor=4),
    Row("std correction", lambda x: x.std(correction=1, keepdims=True), lambda x: x.std(ddof=1, keepdims=True),
        ((normal(3, 4),),), factor=4),
    Row("std of equals", lambda x: x.std(1), lambda x: x.std(1), ((exact([[2.0, 2.0], [1.0, 3.0]]),),),
        torch=lambda x: torch.std(x, 1, correction=0), second=False),
    Row("prod with one zero", lambda x: x.prod(1), lambda x: x.prod(1), ((exact([[0.0, 2.0, 3.0], [1.0, 2.0, 4.0]]),),),
        torch=lambda x: x.prod(1)),
    Row("prod with zeros", lambda x: x.prod(1), lambda x: x.prod(1), ((exact([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]),),),
        torch=lambda x: x.prod(1)),
    Row("prod with zeros over two axes", lambda x: x.prod((0, 2)), lambda x: x.prod((0, 2)),
        ((exact([[[0.0, 2.0], [3.0, 4.0]], [[1.0, 5.0], [0.0, 0.0]]]),),), torch=lambda x: x.prod(2).prod(0)),
    Row("prod long", lambda x: x.prod(), np.prod, ((exact(1.0 + 0.1 * normal(37)),),), second=False, factor=10),
    Row("max ties", lambda x: x.max(1), lambda x: x.max(1), ((_TIES,),), torch=lambda x: x.amax(1), second=False),
    Row("min ties", lambda x: x.min(1), lambda x: x.min(1), ((_TIES,),), torch=lambda x: x.amin(1), second=False),
    Row("max ties of all", lambda x: x.max(), np.max, ((_TIES,),), torch=lambda x: x.amax(), second=False),
    Row("max undefined", lambda x: x.max(1), lambda x: x.max(1), (), ((_UNDEFINED,),)),
    Row("min undefined", lambda x: x.min(1), lambda x: x.min(1), (), ((_UNDEFINED,),)),
    Row("logsumexp infinities", lambda x: x.logsumexp(1), lambda x: sp.logsumexp(x, axis=1), (),
        ((_UNDEFINED,), (exact([[1000.0, 1000.0], [-1000.0, -1000.0]]),))),
    Row("logsumexp of minus infinities", lambda x: x.logsumexp(1), lambda x: sp.logsumexp(x, axis=1),
        ((exact([[-INF, -INF], [-INF, 1.0], [0.0, 2.0]]),),),
        torch=lambda x: torch.cat([torch.where(x[:1] == -INF, 0.0, x[:1]).sum(1), x[1:].logsumexp(1)]), second=False),
]  # fmt: skip


def _norm(x: Any, p: float, axis: Any = None, keepdims: bool = False) -> Any:
    size = np.abs(x)
    if p == 0:
        return np.sum(x != 0, axis=axis, keepdims=keepdims).astype(np.float64)
    if np.isinf(p):
        return (np.max if p > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    return np.sum(size**p, axis=axis, keepdims=keepdims) ** (1.0 / p)


def _count(x: Any, axis: Any, keepdims: bool) -> Any:
    return np.sum(x != 0, axis=axis, keepdims=keepdims, dtype=np.int32)


_KINKS = exact([[0.0, 0.0, 0.0], [3.0, -4.0, 0.0], [0.0, 2.0, 0.0]])
_EQUALS = exact([[1.0, 2.0, 2.0, 3.0], [4.0, 1.0, 4.0, 4.0]])
_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")

NORMS = [
    *(
        Row(f"norm {axis} {keepdims}", lambda x, a=axis, k=keepdims: x.norm(axis=a, keepdims=k),
            lambda x, a=axis, k=keepdims: _norm(x, 2.0, a, k), ((normal(2, 3, 4),),))
        for axis, keepdims in _WAYS
    ),
    *(
        Row(f"norm of order {p}", lambda x, p=p: x.norm(p, 1), lambda x, p=p: _norm(x, p, 1), ((normal(3, 4),), (normal(3, 1),)),
            second=p not in (INF, -INF), factor=4)
        for p in (0, 0.5, 1, 1.5, 3.0, -1.0, INF, -INF)
    ),
    Row("norm over axes", lambda x: x.norm(3, (0, -1), keepdims=True), lambda x: _norm(x, 3.0, (0, 2), True),
        ((normal(2, 3, 4),),), factor=4),
    Row("norm of one number", lambda x: x.norm(1.5) + x.norm(INF), lambda x: 2 * np.abs(x), ((normal(),),), second=False),
    Row("norm of nothing", lambda x: x.norm(axis=0) + x.norm(1, 0) + x.norm(0, 0), lambda x: np.zeros(3), (_EMPTY,)),
    Row("norm beside nothing", lambda x: x.norm(INF, 1), lambda x: np.zeros(0), (_EMPTY,)),
    *(
        Row(f"norm of order {p} at zero", lambda x, p=p: x.norm(p, 1), lambda x, p=p: _norm(x, p, 1), ((_KINKS,),),
            torch=lambda x, p=p: torch.linalg.vector_norm(x, p, 1), second=False, factor=4)
        for p in (1, 1.5, 2, 3.0)
    ),
    Row("norm undefined", lambda x: x.norm(axis=1), lambda x: _norm(x, 2.0, 1), (), ((_UNDEFINED,),)),
    Row("greatest norm undefined", lambda x: x.norm(INF, 1), lambda x: _norm(x, INF, 1), (), ((_UNDEFINED,),)),
    Row("sum of sizes undefined", lambda x: x.norm(1, 1), lambda x: _norm(x, 1.0, 1), (), ((_UNDEFINED,),)),
]  # fmt: skip

ORDER = [
    *(
        Row(f"median {axis} {keepdims}", lambda x, a=axis, k=keepdims: x.median(a, keepdims=k),
            lambda x, a=axis, k=keepdims: np.median(x, axis=a, keepdims=k), ((normal(2, 3, 4),), (normal(3, 1, 3),)))
        for axis, keepdims in _WAYS[:-1]
    ),
    Row("median of one", lambda x: x.median() + x.median(()), lambda x: 2 * x, ((normal(),),)),
    Row("median beside nothing", lambda x: x.median(1), lambda x: np.zeros(0), (_EMPTY,)),
    *(
        Row(f"quantile {m}", lambda x, m=m: x.quantile((0.3, 0.0, 1.0, 0.5), 1, method=m),
            lambda x, m=m: np.quantile(x, (0.3, 0.0, 1.0, 0.5), 1, method=m), ((normal(3, 4),), (normal(2, 5),), (normal(3, 1),)))
        for m in _METHODS
    ),
    Row("quantile of halves nearest", lambda x: x.quantile((0.125, 0.375, 0.625, 0.875), method="nearest"),
        lambda x: np.quantile(x, (0.125, 0.375, 0.625, 0.875), method="nearest"), ((normal(5),),)),
    Row("quantile over axes", lambda x: x.quantile(0.9, (0, 2), keepdims=True),
        lambda x: np.quantile(x, 0.9, (0, 2), keepdims=True), ((normal(2, 3, 4),),)),
    Row("quantile table", lambda x: x.quantile([[0.1, 0.2], [0.3, 0.4]], -1, keepdims=True),
        lambda x: np.quantile(x, [[0.1, 0.2], [0.3, 0.4]], -1, keepdims=True), ((normal(2, 5),),)),
    Row("median of equals", lambda x: x.median(1), lambda x: np.median(x, 1), ((_EQUALS,),),
        torch=lambda x: torch.stack([x[0, 1:3].mean(), x[1, [0, 2, 3]].mean()]), second=False),
    Row("quantile between equals", lambda x: x.quantile(0.25, 1), lambda x: np.quantile(x, 0.25, 1), ((_EQUALS,),),
        torch=lambda x: torch.stack([0.25 * x[0, 0] + 0.75 * x[0, 1:3].mean(), 0.25 * x[1, 1] + 0.75 * x[1, [0, 2, 3]].mean()]),
        second=False),
    Row("median undefined", lambda x: x.median(1), lambda x: np.array([NAN, 0.0, -INF, INF]), (), ((_UNDEFINED,),)),
    Row("quantile of infinities", lambda x: x.quantile((0.0, 0.5), 1), lambda x: np.array([[-INF, INF, -INF], [NAN, INF, -INF]]),
        (), ((exact([[-INF, INF], [INF, INF], [-INF, 1.0]]),),), noisy=True),
    Row("median of many", lambda x: x.median(), np.median, ((normal(601),),), second=False),
]  # fmt: skip

COUNTS = [
    *(
        Row(f"count_nonzero {axis} {keepdims}", lambda x, a=axis, k=keepdims: x.count_nonzero(a, keepdims=k),
            lambda x, a=axis, k=keepdims: _count(x, a, k),
            ((ints(2, 3, 4, low=-1, high=2),), (bools(2, 3, 4),), (np.round(normal(2, 3, 4)),)), gradient=False)
        for axis, keepdims in _WAYS
    ),
    Row("count_nonzero edges", lambda x: x.count_nonzero(), lambda x: np.int32(np.sum(x != 0)),
        ((exact([0.0, -0.0, NAN, INF, 1e-30]),), (exact([]),), (exact(0.0),), (np.asarray(True),)), gradient=False),
    Row("var_mean", lambda x: (lambda v, m: v * 2.0 + m)(*x.var_mean(1, correction=1, keepdims=True)),
        lambda x: x.var(1, ddof=1, keepdims=True) * 2.0 + x.mean(1, keepdims=True), ((normal(3, 4),),), factor=4),
    Row("var of one", lambda x: x.var(1) + x.std(1), lambda x: np.var(x, 1) + np.std(x, 1), ((normal(3, 1),),), second=False,
        torch=lambda x: torch.var(x, 1, correction=0)),
]  # fmt: skip

_LINE = exact([[2.0, 0.0, 3.0, 4.0, 0.0, 5.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, -1.0, 2.0, 0.0]])
_STEPS = exact([[1.0, 3.0, 3.0, 2.0, 3.0], [2.0, 2.0, 1.0, 2.0, 0.0], [-1.0, -1.0, -2.0, -2.0, -3.0]])
_AXES = (0, 1, -1)


SCANS = [
    *(same(f"cumsum {axis}", lambda x, a=axis: x.cumsum(a), (normal(2, 3, 4),), (normal(2, 0, 3),)) for axis in (0, 1, -1)),
    *(
        Row(f"{name} {axis}", lambda x, n=name, a=axis: getattr(x, n)(a), lambda x, n=name, a=axis: getattr(np, n)(x, axis=a),
            ((normal(3, 4),), (_TIES,), (_UNDEFINED[:2],), (exact([[0.0, -0.0], [-0.0, 0.0]]),)), gradient=False)
        for name in ("argmax", "argmin")
        for axis in (None, 0, -1)
    ),
    *(
        Row(f"{name} {axis} kept", lambda x, n=name, a=axis: getattr(x, n)(a, keepdims=True),
            lambda x, n=name, a=axis: getattr(np, n)(x, axis=a, keepdims=True),
            ((normal(3, 4),), (ints(3, 4),), (normal(2, 1, 3),)), gradient=False)
        for name in ("argmax", "argmin")
        for axis in (None, 1)
    ),
    *(
        Row(f"{name} {axis}", lambda x, n=name, a=axis: getattr(x, n)(a), lambda x, a=axis, f=ufunc: f.accumulate(x, axis=a),
            ((normal(2, 3, 5),), (normal(2, 0, 3),), (normal(1, 1),)), second=second, factor=4)
        for name, ufunc, second in (
            ("cumprod", np.multiply, True), ("cummax", np.maximum, False), ("cummin", np.minimum, False),
            ("logcumsumexp", np.logaddexp, True),
        )
        for axis in _AXES
    ),
    *(
        Row(f"int {name} {axis}", lambda x, n=name, a=axis: getattr(x, n)(a), lambda x, a=axis, f=ufunc: f.accumulate(x, axis=a),
            ((ints(2, 3, 5),), (ints(2, 0, 3),), (ints(1, 1),)))
        for name, ufunc in (("cumprod", np.multiply), ("cummax", np.maximum), ("cummin", np.minimum))
        for axis in _AXES
    ),
    Row("int cumprod wraps", lambda x: x.cumprod(0), lambda x: np.cumprod(x, dtype=np.int32), ((np.full(7, 99999, np.int32),),)),
    Row("cumprod with zeros", lambda x: x.cumprod(1), lambda x: x.cumprod(1), ((_LINE,),), torch=lambda x: x.cumprod(1)),
    Row("cumprod long", lambda x: x.cumprod(0), lambda x: x.cumprod(0), ((exact(1.0 + 0.1 * normal(37)),),), second=False,
        factor=10),
    Row("cumprod undefined", lambda x: x.cumprod(1), lambda x: x.cumprod(1), (), ((_UNDEFINED,),), noisy=True),
    Row("cummax ties", lambda x: x.cummax(1), lambda x: np.maximum.accumulate(x, 1), ((_STEPS,), (_LINE,)),
        torch=lambda x: x.cummax(1).values, second=False),
    Row("cummin ties", lambda x: x.cummin(1), lambda x: np.minimum.accumulate(x, 1), ((_STEPS,), (_LINE,)),
        torch=lambda x: x.cummin(1).values, second=False),
    Row("cummax undefined", lambda x: x.cummax(1), lambda x: np.maximum.accumulate(x, 1),
        ((exact([[1.0, NAN, 3.0], [NAN, 1.0, NAN]]),),), ((_UNDEFINED,),), torch=lambda x: x.cummax(1).values, second=False),
    Row("cummin undefined", lambda x: x.cummin(1), lambda x: np.minimum.accumulate(x, 1), (), ((_UNDEFINED,),)),
    Row("logcumsumexp undefined", lambda x: x.logcumsumexp(1), lambda x: np.logaddexp.accumulate(x, 1), (),
        ((_UNDEFINED,), (exact([[1000.0, 1000.0, 0.0], [-1000.0, -1000.0, -1000.0]]),)), noisy=True),
    Row("logcumsumexp after minus infinity", lambda x: x.logcumsumexp(1), lambda x: np.logaddexp.accumulate(x, 1),
        ((exact([[-INF, 1.0, 2.0, -INF], [-INF, -1.0, -INF, 3.0]]),),),
        torch=lambda x: torch.cat([0.0 * torch.where(x[:, :1] == -INF, 0.0, x[:, :1]),
                                   (x[:, 1:].exp().cumsum(1)).log()], 1), second=False),
    Row("logcumsumexp far apart", lambda x: x.logcumsumexp(0), lambda x: np.logaddexp.accumulate(x),
        ((exact([100.0, -100.0, 90.0, 101.0]),),)),
    *(
        Row(f"diff {n} {axis}", lambda x, n=n, a=axis: x.diff(n, a), lambda x, n=n, a=axis: np.diff(x, n, a),
            ((normal(3, 4),), (ints(3, 4),), (normal(2, 0),)))
        for n, axis in ((1, -1), (2, 0), (0, 1), (7, 1))
    ),
    Row("argmax beside nothing", lambda x: x.argmax(1), lambda x: np.zeros(0, np.int32), (_EMPTY,), gradient=False),
]  # fmt: skip

ROWS: list[Row] = [*SUMS, *NORMS, *ORDER, *COUNTS, *SCANS]
