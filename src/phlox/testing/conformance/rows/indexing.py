# pyright: standard
"""Reading and writing at indices, sorting, searching and counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.testing.conformance.row import (
    INF,
    NAN,
    SPECIAL,
    Row,
    Sample,
    bools,
    exact,
    ints,
    normal,
    other,
    positive,
    torch,
)

Key = Callable[..., Any]
"""Builds the key in brackets from the further arguments."""

_MODES = ("set", "add", "sub", "mul", "min", "max")
_UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _written(mode: str, x: np.ndarray[Any, Any], key: Any, v: Any) -> np.ndarray[Any, Any]:
    out = x.copy()
    if mode == "set":
        out[key] = v
    else:
        _UFUNCS[mode].at(out, key, v)
    return out


def _read(name: str, key: Key, *samples: Sample, **options: Any) -> Row:
    return Row(f"x[{name}]", lambda x, *i: x[key(*i)], lambda x, *i: x[key(*i)], samples, **options)


def _write(mode: str, name: str, key: Key, *samples: Sample, **options: Any) -> Row:
    return Row(f"x.at[{name}].{mode}", lambda x, v, *i: getattr(x.at[key(*i)], mode)(v),
               lambda x, v, *i: _written(mode, x, key(*i), v), samples, **options)  # fmt: skip


def _at(*entries: Any) -> Key:
    """A key with arguments in place of None; 'new' is `np.newaxis`; other entries are kept."""

    def key(*arguments: Any) -> Any:
        values = iter(arguments)
        return tuple(next(values) if e is None else None if isinstance(e, str) else e for e in entries)

    return key


_ALL = slice(None)
_X = normal(3, 4, 5)
_I, _J, _K = (np.array(v, np.int32) for v in ([0, 2, -1], [3, 0, 3], [[1], [-5]]))
_ONE = np.array(-2, np.int32)
_NONE = np.zeros((0,), np.int32)
_HALF = np.array([True, False, True])

_READS: tuple[tuple[str, Key, tuple[Sample, ...]], ...] = (
    ("i", _at(None), ((_X, _I), (_X, _K % 3), (_X, _ONE), (_X, _NONE), (normal(5), _I), (ints(3, 2), _I),
        (bools(3, 2), _I))),
    ("i, j", _at(None, None), ((_X, _I, _J), (_X, _I, _K % 4), (_X, _ONE, _J), (_X, _NONE, _NONE),
        (ints(3, 4), _I, _J))),
    ("i, :, k", _at(None, _ALL, None), ((_X, _I, _K), (_X, _ONE, _K), (normal(3, 0, 5), _I, _K))),
    (":, i, k", _at(_ALL, None, None), ((_X, _I, _K), (bools(3, 4, 5), _I, _K))),
    ("..., i", _at(..., None), ((_X, _I), (normal(4), _K % 4))),
    ("0, :, k", _at(0, _ALL, None), ((_X, _K),)),
    (":, 1, k", _at(_ALL, 1, None), ((_X, _K),)),
    ("::-2, None, j, 1:4", _at(slice(None, None, -2), "new", None, slice(1, 4)), ((_X, _J),)),
    ("i, None, j", _at(None, "new", None), ((_X, _I, _J),)),
    ("list", lambda: ([2, 0], _ALL, [[1], [4]]), ((_X,),)),
    ("NumPy array", lambda: (np.array([2, 0]), 1), ((_X,),)),
    ("list of truth", lambda: [True, False, True], ((_X,), (ints(3),))),
    ("mask", _at(None), ((_X, bools(3, 4, 5)), (_X, bools(3, 4)), (_X, _HALF), (normal(), np.array(True)),
        (_X, np.zeros((3,), bool)))),
    (":, mask, 0", _at(_ALL, None, 0), ((_X, bools(4)),)),
    ("i, mask", _at(None, None), ((_X, np.array([0, 2], np.int32), np.array([True, False, True, False])),)),
    ("mask, i", _at(None, None), ((_X, _HALF, np.array([1, -1], np.int32)),)),
    ("0, mask", _at(0, None), ((_X, bools(4, 5)),)),
)  # fmt: skip

_BASIC: tuple[tuple[str, Key, np.ndarray[Any, Any]], ...] = (
    ("1", _at(1), normal(4, 5)),
    ("-1, 2:", _at(-1, slice(2, None)), normal(2, 1)),
    ("::2, ..., ::-3", _at(slice(None, None, 2), ..., slice(None, None, -3)), other(2, 4, 2)),
    ("None, :, 1", _at("new", _ALL, 1), normal(1, 3, 5)),
    ("...", _at(...), normal(5)),
    ("2:2", _at(slice(2, 2)), normal(0, 4, 5)),
)

_REPEATS = np.array([1, 1, 0, -2, 1], np.int32)  # in an axis of three, -2 is 1
_TIES = (exact([1.0, 2.0, 0.0]), exact([2.0, 2.0, 0.0, 1.0, -1.0]), _REPEATS)


def _ties(of: str) -> Callable[..., Any]:
    """The extreme of x and all updates; ties share the gradient evenly, as in torch's amax and amin."""

    def write(x: Any, v: Any, i: Any) -> Any:
        rows = [torch.cat([x[n : n + 1], v[i % 3 == n]]) for n in range(3)]
        return torch.stack([getattr(torch, of)(row) for row in rows])

    return write


def _scatter(x: Any, i: Any, v: Any, axis: int, mode: str) -> np.ndarray[Any, Any]:
    grid = list(np.ogrid[tuple(slice(n) for n in i.shape)])
    grid[axis] = i
    return _written(mode, x, tuple(grid), np.broadcast_to(v, i.shape))


def _gather(x: Any, i: Any, axis: int) -> np.ndarray[Any, Any]:
    grid = list(np.ogrid[tuple(slice(n) for n in i.shape)])
    grid[axis] = i
    return x[tuple(grid)]


_COLUMNS = np.array([[0, 3, -1], [3, 3, 3]], np.int32)

INDEXING = [
    *(_read(name, key, *samples) for name, key, samples in _READS),
    *(_write(mode, name, key, (_X, v), (_X, normal()), *(() if name == "..." else ((_X, 2.0),)))
        for mode in _MODES for name, key, v in (_BASIC if mode in ("set", "mul") else _BASIC[2:3])),
    _write("set", "0 of ints", _at(0), (ints(3, 4), ints(4)), (ints(3), 7), (bools(3, 4), bools(4)), (bools(3), True)),
    *(
        _write(mode, "i", _at(None), (normal(3), other(5), _REPEATS), (normal(3, 2), normal(5, 2), _REPEATS),
            (normal(3, 2), normal(2), _REPEATS), (ints(3, 2), ints(5, 2), _REPEATS), (normal(3, 2), 2.0, _NONE),
            (normal(3, 20), normal(20, 20), ints(20, low=-3, high=3)))
        for mode in _MODES
    ),
    *(
        _write(mode, name, key, *((x, other(*x[key(*i)].shape), *i) for x, *i in samples[:1]),
            *((x, np.asarray(1.5), *i) for x, *i in samples[:1]), second=name == "i, j")
        for mode in ("set", "add", "mul", "max") for name, key, samples in _READS
        if mode == "add" or name in ("i, :, k", "::-2, None, j, 1:4", "mask", "0, mask")
    ),
    Row("x.at[mask] of rows", lambda x, m, v: x.at[m].set(v), lambda x, m, v: _written("set", x, m, v),
        ((normal(3, 4), _HALF, normal(4)), (ints(3, 4), _HALF, 5), (bools(3), _HALF, True),
         (normal(2, 3), np.array([True, False]), normal(1)))),
    Row("x.at[bool i].set", lambda x, i, v: x.at[i].set(v), lambda x, i, v: _written("set", x, i, v),
        ((bools(3, 2), _REPEATS, bools(5, 2)),)),
    Row("x.at[i].get", lambda x, i: x.at[i].get(), lambda x, i: x[i], ((_X, _I),)),
    # First and second derivatives of products with one or several zero factors at one position.
    Row("x.at[i].mul zeros", lambda x, v, i: x.at[i].mul(v), lambda x, v, i: _written("mul", x, i, v),
        ((exact([2.0, 0.0, 3.0]), exact([0.0, 2.0, 0.0, 0.0, 5.0]), np.array([0, 0, 2, 2, 1], np.int32)),
         (exact([0.0, 0.0, 3.0]), exact([0.0, 2.0, 3.0, 0.0, 5.0]), np.array([0, 0, 0, 2, 1], np.int32)))),
    Row("x.at[i].max ties", lambda x, v, i: x.at[i].max(v), lambda x, v, i: _written("max", x, i, v), (_TIES,),
        torch=_ties("amax"), second=False),
    Row("x.at[i].min ties", lambda x, v, i: x.at[i].min(v), lambda x, v, i: _written("min", x, i, v), (_TIES,),
        torch=_ties("amin"), second=False),
    Row("x.at[i].max NaN", lambda x, v, i: x.at[i].max(v), lambda x, v, i: _written("max", x, i, v), (),
        specials=((exact([1.0, NAN, -INF]), exact([NAN, 0.0, 3.0]), np.array([0, 1, 2], np.int32)),)),
    Row("x.at[i].min NaN", lambda x, v, i: x.at[i].min(v), lambda x, v, i: _written("min", x, i, v), (),
        specials=((exact([1.0, NAN, INF]), exact([NAN, 0.0, 3.0]), np.array([0, 1, 2], np.int32)),)),
    Row("reading and writing again", lambda x, i: (x.at[i].add(x[i] * x[i]).at[1:].mul(x[1:]) * x)[i],
        lambda x, i: (lambda y: (np.concatenate([y[:1], y[1:] * x[1:]]) * x)[i])(_written("add", x, i, x[i] * x[i])),
        ((positive(3), _REPEATS),)),
    *(
        Row(f"gather {axis}", lambda x, i, a=axis: x.gather(a, i), lambda x, i, a=axis: _gather(x, i, a),
            ((normal(4, 4), _COLUMNS), (normal(4, 4), np.zeros((0, 3), np.int32)), (ints(4, 4), _COLUMNS)))
        for axis in (0, 1)
    ),
    *(
        Row(f"scatter {axis} {mode}", lambda x, i, v, a=axis, m=mode: x.scatter(a, i, v, m),
            lambda x, i, v, a=axis, m=mode: _scatter(x, i, v, a, m),
            ((normal(4, 4), _COLUMNS, other(2, 3)), (normal(4, 4), _COLUMNS, normal(3)), (normal(4, 4), _COLUMNS, 2.5),
             (ints(4, 4), _COLUMNS, ints(2, 3))))
        for axis, mode in ((0, "set"), (1, "set"), (1, "add"), (0, "mul"), (1, "min"), (0, "max"))
    ),
    Row("masked_fill", lambda x, m, v: x.masked_fill(m, v), lambda x, m, v: np.where(m, v, x).astype(x.dtype),
        ((normal(3, 4), bools(3, 4), 2.5), (normal(3, 4), bools(4), normal()), (normal(3, 4), bools(3, 1), normal(4)),
         (ints(3, 4), bools(4), 7), (bools(3, 4), bools(4), True), (normal(0, 4), bools(4), 1))),
    Row("masked_fill of NaN", lambda x, m: x.masked_fill(m, 0.0).sqrt(), lambda x, m: np.sqrt(np.where(m, 0.0, x)), (),
        specials=((exact([NAN, 4.0]), np.array([True, False])),)),
    Row("masked_select", lambda x, m: x.masked_select(m), lambda x, m: x[np.broadcast_to(m, x.shape)],
        ((normal(3, 4), bools(3, 4)), (normal(3, 4), bools(4)), (ints(3, 4), bools(3, 1)), (normal(0, 4), bools(4)))),
    *(
        Row(f"nonzero {axis}", lambda x, a=axis: x.nonzero()[a], lambda x, a=axis: x.nonzero()[a].astype(np.int32),
            ((exact([[0.0, 2.0, -0.0], [NAN, 0.0, 1.0]]),), (ints(3, 4, low=0, high=2),), (bools(4, 3),),
             (normal(2, 0),)),
            gradient=False)
        for axis in (0, 1)
    ),
    Row("argwhere", lambda x: x.argwhere(), lambda x: np.argwhere(x).astype(np.int32),
        ((exact([[0.0, 2.0, -0.0], [NAN, 0.0, 1.0]]),), (ints(5, low=0, high=2),), (bools(2, 3, 2),), (normal(2, 0),)),
        gradient=False),
]  # fmt: skip


_TIED = exact([[2.0, 1.0, 2.0, 0.0, -0.0, 1.0], [NAN, INF, 0.0, NAN, -0.0, -INF]])
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
    indices = np.zeros(values.shape, np.int32)
    for row in np.ndindex(x.shape[:-1]):
        indices[row] = np.searchsorted(x[row], values[row], side)
    return indices


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

SORTING = [
    *(
        Row(f"sort {axis} {descending}", lambda x, a=axis, d=descending: x.sort(a, d),
            lambda x, a=axis, d=descending: _sort(x, a, d),
            ((normal(3, 4),), (normal(2, 3, 2),), (normal(0, 3),), (normal(3, 0),)), specials=((_TIED,),))
        for axis, descending in _ORDERS
    ),
    *(
        Row(f"argsort {axis} {descending}", lambda x, a=axis, d=descending: x.argsort(a, d),
            lambda x, a=axis, d=descending: _argsort(x, a, d),
            ((normal(3, 4),), (_TIED,), (ints(4, 5, low=0, high=3),), (normal(0, 3),), (normal(3, 0),)), gradient=False)
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


ROWS: list[Row] = [*INDEXING, *SORTING]
