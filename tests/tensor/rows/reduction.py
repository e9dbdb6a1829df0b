# ruff: noqa: E501
"""Reductions and scans of Float tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp
import torch

from tests.tensor.rows.row import INF, NAN, Row, exact, normal, same

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

SCANS = [
    *(same(f"cumsum {axis}", lambda x, a=axis: x.cumsum(a), (normal(2, 3, 4),), (normal(2, 0, 3),)) for axis in (0, 1, -1)),
    *(
        Row(f"{name} {axis}", lambda x, n=name, a=axis: getattr(x, n)(a), lambda x, n=name, a=axis: getattr(np, n)(x, axis=a),
            ((normal(3, 4),), (_TIES,), (_UNDEFINED[:2],), (exact([[0.0, -0.0], [-0.0, 0.0]]),)), gradient=False)
        for name in ("argmax", "argmin")
        for axis in (None, 0, -1)
    ),
    Row("argmax beside nothing", lambda x: x.argmax(1), lambda x: np.zeros(0, np.int32), (_EMPTY,), gradient=False),
]  # fmt: skip

ROWS: list[Row] = [*SUMS, *SCANS]
