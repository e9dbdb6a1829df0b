# pyright: standard
"""Sorting, searching and counting."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.testing.conformance.row import INF, NAN, SPECIAL, Row, bools, exact, ints, normal, other, torch

_TIES = exact([[2.0, 1.0, 2.0, 0.0, -0.0, 1.0], [NAN, INF, 0.0, NAN, -0.0, -INF]])
_ORDERS = tuple((axis, descending) for axis in (-1, 0) for descending in (False, True))


def _argsort(x: np.ndarray[Any, Any], axis: int, descending: bool) -> np.ndarray[Any, Any]:
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    return np.argsort(-ranks if descending else ranks, axis, kind="stable").astype(np.int32)


def _sort(x: np.ndarray[Any, Any], axis: int, descending: bool) -> np.ndarray[Any, Any]:
    return np.take_along_axis(x, _argsort(x, axis, descending), axis)


def _first(x: np.ndarray[Any, Any], k: int, axis: int) -> np.ndarray[Any, Any]:
    return np.take(x, np.arange(k), axis)


def _searchsorted(x: np.ndarray[Any, Any], values: np.ndarray[Any, Any], side: Any) -> np.ndarray[Any, Any]:
    if x.ndim == 1:
        return np.searchsorted(x, values, side).astype(np.int32)
    found = np.zeros(values.shape, np.int32)
    for row in np.ndindex(x.shape[:-1]):
        found[row] = np.searchsorted(x[row], values[row], side)
    return found


def _signs(x: Any) -> Any:
    """The signs of zeros."""
    return 1.0 / x


def _first_of_equals(x: Any) -> Any:
    flat = x.reshape(-1)
    return flat[torch.as_tensor(np.unique(flat.detach().numpy(), return_index=True)[1])]


_REPEATED = (
    (np.round(normal(3, 4)),), (np.tile(SPECIAL, 2),), (normal(0),), (normal(2, 0),), (ints(12, low=0, high=3),),
    (bools(5),),
)  # fmt: skip

ROWS: list[Row] = [
    *(
        Row(f"sort {axis} {descending}", lambda x, a=axis, d=descending: x.sort(a, d),
            lambda x, a=axis, d=descending: _sort(x, a, d),
            ((normal(3, 4),), (normal(2, 3, 2),), (normal(0, 3),), (normal(3, 0),)), specials=((_TIES,),))
        for axis, descending in _ORDERS
    ),
    *(
        Row(f"argsort {axis} {descending}", lambda x, a=axis, d=descending: x.argsort(a, d),
            lambda x, a=axis, d=descending: _argsort(x, a, d),
            ((normal(3, 4),), (_TIES,), (ints(4, 5, low=0, high=3),), (normal(0, 3),), (normal(3, 0),)), gradient=False)
        for axis, descending in _ORDERS
    ),
    Row("sort of rank 1", lambda x: x.sort(), lambda x: np.sort(x), ((normal(5),), (normal(1),), (normal(0),)),
        specials=((SPECIAL,), (np.repeat(SPECIAL, 3),))),
    Row("sort keeps the order of zeros", lambda x: _signs(x.sort(descending=True)),
        lambda x: _signs(_sort(x, -1, True)), ((exact([0.0, -0.0, 1.0, 0.0, -0.0]),),), gradient=False),
    Row("sort of ints", lambda x: x.sort(0), lambda x: np.sort(x, 0), ((ints(5),), (ints(4, 3),), (ints(0, 2),),
        (np.array([2**31 - 1, -(2**31), 0], np.int32),))),
    Row("sort of ints descending", lambda x: x.sort(descending=True), lambda x: _sort(x, -1, True),
        ((ints(5),), (ints(4, 3),), (np.array([2**31 - 1, -(2**31), 0], np.int32),))),
    Row("argsort of many", lambda x: x.argsort(), lambda x: _argsort(x, -1, False),
        ((np.round(normal(3, 400)),), (ints(1200, low=-40, high=40),), (np.tile(SPECIAL, 80),)), gradient=False),
    Row("argsort of many descending", lambda x: x.argsort(0, descending=True), lambda x: _argsort(x, 0, True),
        ((np.round(normal(400, 3)),), (ints(1200, low=-40, high=40),), (np.tile(SPECIAL, 80),)), gradient=False),
    *(
        Row(f"topk {k} {axis} {largest}", lambda x, k=k, a=axis, b=largest: x.topk(k, a, b)[0],
            lambda x, k=k, a=axis, b=largest: _first(_sort(x, a, b), k, a),
            ((normal(4, 5),), (ints(5, 4, low=0, high=3),)), specials=((exact(np.resize(SPECIAL, (5, 13))),),))
        for k, axis, largest in ((1, -1, True), (3, 0, True), (2, 1, False), (0, 1, True), (4, 0, False))
    ),
    *(
        Row(f"places of topk of many {largest}", lambda x, b=largest: x.topk(9, 0, b)[1],
            lambda x, b=largest: _first(_argsort(x, 0, b), 9, 0),
            ((np.round(normal(900, 5)),), (ints(900, 5),), (np.tile(SPECIAL, 300),)), gradient=False)
        for largest in (True, False)
    ),
    *(
        Row(f"places of topk {k} {axis} {largest}", lambda x, k=k, a=axis, b=largest: x.topk(k, a, b)[1],
            lambda x, k=k, a=axis, b=largest: _first(_argsort(x, a, b), k, a),
            ((normal(4, 5),), (exact(np.resize(SPECIAL, (5, 13))),), (ints(5, 40, low=0, high=3),)), gradient=False)
        for k, axis, largest in ((1, -1, True), (3, 0, True), (3, 1, False), (0, 1, True), (4, 0, False))
    ),
    *(
        Row(f"searchsorted {side}", lambda x, v, s=side: x.searchsorted(v, side=s),
            lambda x, v, s=side: _searchsorted(x, v, s),
            (
                (np.sort(normal(7)), normal(4)), (np.sort(normal(7)), normal(2, 3)), (np.sort(normal(7)), normal()),
                (np.sort(normal(0)), normal(3)), (np.sort(normal(3)), normal(0)),
                (np.sort(np.round(normal(2, 3, 9))), np.round(other(2, 3, 4))), (normal(2, 0), normal(2, 3)),
                (np.sort(SPECIAL), SPECIAL), (np.sort(np.stack([SPECIAL, SPECIAL])), np.stack([SPECIAL, SPECIAL])),
                (np.sort(ints(9, low=0, high=5)), ints(6, low=-1, high=7)),
                (np.sort(ints(2, 9, low=0, high=5)), ints(2, 6, low=-1, high=7)),
            ), gradient=False)
        for side in ("left", "right")
    ),
    Row("unique", lambda x: x.unique(), np.unique,
        ((normal(5),), (exact([[2.0, 1.0], [2.0, 3.0]]),), (normal(0),), (normal(),), (ints(3, 4, low=0, high=3),),
            (bools(5),)), specials=((np.tile(SPECIAL, 2),),), torch=_first_of_equals, second=False),
    Row("unique inverse", lambda x: x.unique(return_inverse=True)[1],
        lambda x: np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int32), _REPEATED, gradient=False),
    Row("unique counts", lambda x: x.unique(return_inverse=True, return_counts=True)[2],
        lambda x: np.unique(x, return_counts=True)[1].astype(np.int32), _REPEATED, gradient=False),
    Row("isin", lambda x, v: x.isin(v), np.isin,
        ((np.round(normal(3, 4)), np.round(other(4))), (SPECIAL, exact([0.0, NAN, INF])), (normal(3), normal(0)),
         (normal(), normal(2, 2)), (ints(9), ints(3)), (bools(5), np.array([True])), (normal(0), normal(3))),
        gradient=False),
    Row("bincount", lambda x: x.bincount(), lambda x: np.bincount(x).astype(np.int32),
        ((ints(9, low=0, high=5),), (ints(0),), (ints(40, low=0, high=3),))),
    Row("bincount of at least", lambda x: x.bincount(minlength=7),
        lambda x: np.bincount(x, minlength=7).astype(np.int32), ((ints(9, low=0, high=5),), (ints(0),))),
    Row("bincount of weights", lambda x, w: x.bincount(w, minlength=3), lambda x, w: np.bincount(x, w, 3) * 1.0,
        ((ints(9, low=0, high=5), normal(9)), (ints(0), normal(0)))),
]  # fmt: skip
