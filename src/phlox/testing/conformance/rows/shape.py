# ruff: noqa: E501
# pyright: standard, reportCallIssue=false, reportArgumentType=false
"""Shapes, basic indexing, joining, and creation, whose calls take a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox.testing.conformance.row import INF, NAN, Row, bools, exact, ints, normal, other, same, torch

_X = (normal(2, 3, 4),)
_ALL: tuple[tuple[Any, ...], ...] = (_X, (ints(2, 3, 4),), (bools(2, 3, 4),))
_NONE = (normal(2, 0, 4),)


def _all(name: str, call: Any, reference: Any, *further: Any) -> Row:
    """A row for every kind."""
    return Row(name, call, reference, (*_ALL, *further))


MOVES = [
    _all("reshape", lambda x: x.reshape(4, 6), lambda x: x.reshape(4, 6)),
    _all("reshape tuple", lambda x: x.reshape((3, -1)), lambda x: x.reshape(3, -1)),
    Row("reshape of one", lambda x: x.reshape(1, 1), lambda x: x.reshape(1, 1), ((normal(),),)),
    Row("reshape to one", lambda x: x.reshape(()), lambda x: x.reshape(()), ((normal(1),), (normal(1, 1),))),
    Row("reshape of nothing", lambda x: x.reshape(0, 3), lambda x: x.reshape(0, 3), (_NONE,)),
    _all("flatten", lambda x: x.flatten(), lambda x: x.reshape(-1), (normal(),), _NONE),
    Row("flatten some", lambda x: x.flatten(1), lambda x: x.reshape(2, 12), (_X,)),
    Row("flatten first", lambda x: x.flatten(0, 1), lambda x: x.reshape(6, 4), (_X,)),
    _all("permute_dims", lambda x: x.permute_dims(2, 0, 1), lambda x: np.transpose(x, (2, 0, 1)), _NONE),
    Row("permute_dims tuple", lambda x: x.permute_dims((1, -1, 0)), lambda x: np.transpose(x, (1, 2, 0)), (_X,)),
    Row("permute_dims of one", lambda x: x.permute_dims(()), lambda x: x, ((normal(),),)),
    same("T", lambda x: x.T, (normal(3, 4),), (ints(3, 4),)),
    Row("mT", lambda x: x.mT, lambda x: np.swapaxes(x, -1, -2), (_X,)),
    same("swapaxes", lambda x: x.swapaxes(0, -1), *_ALL),
    Row("squeeze", lambda x: x.squeeze(), np.squeeze, ((normal(2, 1, 3, 1),), (normal(1, 1),), (ints(1, 2),), (normal(),))),
    Row("squeeze some", lambda x: x.squeeze((1, -1)), lambda x: x.squeeze((1, -1)), ((normal(2, 1, 1, 1),),)),
    Row("expand_dims", lambda x: x.expand_dims(1), lambda x: np.expand_dims(x, 1), (*_ALL, (normal(3),))),
    Row("expand_dims last", lambda x: x.expand_dims(-1), lambda x: np.expand_dims(x, -1), (_X, (normal(),))),
    Row("expand_dims several", lambda x: x.expand_dims((0, -1)), lambda x: np.expand_dims(x, (0, -1)), (_X,)),
    Row("broadcast_to", lambda x: x.broadcast_to((2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)),
        ((normal(3, 1),), (normal(),), (normal(4),), (ints(2, 1, 1),), (bools(4),), (normal(2, 3, 4),))),
    Row("broadcast_to nothing", lambda x: x.broadcast_to((0, 3)), lambda x: np.broadcast_to(x, (0, 3)),
        ((normal(3),), (normal(1, 3),))),
    _all("flip", lambda x: x.flip(), np.flip, _NONE),
    Row("flip some", lambda x: x.flip((0, -1)), lambda x: np.flip(x, (0, 2)), (_X,)),
    Row("flip one", lambda x: x.flip(1), lambda x: np.flip(x, 1), (_X, (ints(2, 3),))),
    Row("pad", lambda x: x.pad(((1, 2), (0, 1)), 0.5), lambda x: np.pad(x, ((1, 2), (0, 1)), constant_values=0.5),
        ((normal(2, 3),), (normal(0, 3),))),
    Row("pad zeros", lambda x: x.pad(((1, 0), (0, 2))), lambda x: np.pad(x, ((1, 0), (0, 2))),
        ((normal(2, 3),), (ints(2, 3),), (bools(2, 3),))),
    Row("pad infinity", lambda x: x.pad(((1, 1),), -INF), lambda x: np.pad(x, 1, constant_values=-INF), ((normal(3),),),
        torch=lambda x: torch.nn.functional.pad(x, (1, 1), value=-INF), second=False),
    Row("pad int", lambda x: x.pad(((1, 1),), 7), lambda x: np.pad(x, 1, constant_values=7), ((ints(3),),)),
    Row("pad bool", lambda x: x.pad(((1, 1),), True), lambda x: np.pad(x, 1, constant_values=True), ((bools(3),),)),
    Row("unflatten", lambda x: x.unflatten(-1, (2, -1)), lambda x: x.reshape(2, 3, 2, 2), (*_ALL,)),
    Row("unflatten nothing", lambda x: x.unflatten(1, (0, 3)), lambda x: x.reshape(2, 0, 3, 4), (_NONE,)),
    Row("moveaxis", lambda x: x.moveaxis(0, -1), lambda x: np.moveaxis(x, 0, -1), (*_ALL, _NONE)),
    Row("moveaxis several", lambda x: x.moveaxis((0, -1), (2, 0)), lambda x: np.moveaxis(x, (0, -1), (2, 0)), (_X,)),
    *(
        Row(f"rot90 {k}", lambda x, k=k: x.rot90(k, (0, -1)), lambda x, k=k: np.rot90(x, k, (0, -1)), (*_ALL, _NONE))
        for k in (0, 1, 2, -1)
    ),
    *(
        Row(f"roll {shift} {axis}", lambda x, s=shift, a=axis: x.roll(s, a), lambda x, s=shift, a=axis: np.roll(x, s, a),
            (*_ALL, _NONE))
        for shift, axis in ((1, 0), (-5, -1), (2, None), (1, (0, 2)), ((1, -2), (2, 1)), ((1, 2, 3), (1, 0, 1)), (0, 1), (12, 1))
    ),
    Row("roll of one", lambda x: x.roll(3), lambda x: x, ((normal(),),)),
    *(
        Row(f"repeat {times} {axis}", lambda x, t=times, a=axis: x.repeat(t, a), lambda x, t=times, a=axis: np.repeat(x, t, a),
            (*_ALL,))
        for times, axis in ((2, 1), (3, -1), (0, 0), (2, None), ((1, 0, 2), 1))
    ),
    Row("repeat edges", lambda x: x.repeat(2), lambda x: np.repeat(x, 2), ((normal(),), (normal(2, 0),))),
    *(
        Row(f"tile {times}", lambda x, t=times: x.tile(t), lambda x, t=times: np.tile(x, t), (*_ALL, (normal(),), _NONE))
        for times in ((2,), (1, 2, 1), (2, 1, 1, 3), (0, 1), ())
    ),
    Row("tile numbers", lambda x: x.tile(2, 3), lambda x: np.tile(x, (2, 3)), ((normal(2),),)),
    *(
        Row(f"pad {mode}", lambda x, m=mode: x.pad(((2, 1), (0, 4)), mode=m), lambda x, n=name: np.pad(x, ((2, 1), (0, 4)), n),
            ((normal(3, 5),), (ints(3, 5),), (bools(3, 5),), (normal(2, 2),), (normal(1, 1),), (normal(2, 1),)))
        for mode, name in (
            ("edge", "edge"), ("replicate", "edge"), ("reflect", "reflect"), ("symmetric", "symmetric"), ("wrap", "wrap"),
            ("circular", "wrap"),
        )
    ),
    Row("pad nothing reflect", lambda x: x.pad(((0, 0), (1, 1), (0, 0)), mode="reflect"),
        lambda x: np.pad(x, ((0, 0), (1, 1), (0, 0)), "reflect"), ((normal(0, 3, 4),), (normal(3, 2, 0),))),
    Row("pad by nothing", lambda x: x.pad((), mode="edge") + x.pad(()), lambda x: 2 * x, ((normal(),),)),
    Row("split sizes", lambda x: px.concat(x.split([2, 0, 1], 1)[::-1], 1), lambda x: np.concatenate([x[:, 2:], x[:, :2]], 1),
        _ALL),
    Row("split nothing", lambda x: px.concat(x.split(2, 1), 1), lambda x: x, (_NONE,)),
    *(
        Row(f"chunk {n}", lambda x, n=n: px.concat(x.chunk(n, -1)[::-1], -1),
            lambda x, w=width: np.concatenate([x[..., i : i + w] for i in range(0, x.shape[-1] or 1, w)][::-1], -1), (*_ALL, (normal(3, 0),)))
        for n, width in ((2, 2), (3, 2), (9, 1))
    ),
    Row("unstack", lambda x: px.stack(x.unstack(1)[::-1]), lambda x: np.moveaxis(x, 1, 0)[::-1], _ALL),
    *(
        Row(f"unfold {axis} {size} {step}", lambda x, a=axis, n=size, s=step: x.unfold(a, n, s),
            lambda x, a=axis % 3, n=size, s=step: np.moveaxis(
                np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, n, a), a, 0)[::s], 0, a),
            ((normal(3, 7, 4),), (ints(3, 7, 4),), (bools(3, 7, 4),)))
        for axis, size, step in ((1, 3, 1), (1, 3, 2), (-2, 2, 3), (1, 7, 1), (0, 1, 2), (2, 3, 1))
    ),
    Row("unfold beside nothing", lambda x: x.unfold(1, 2), lambda x: np.zeros((0, 2, 2)), ((normal(0, 3),),)),
    *(
        Row(f"{name} {k}", lambda x, n=name, k=k: getattr(x, n)(k), lambda x, n=name, k=k: getattr(np, n)(x, k), (*_ALL, _NONE))
        for name in ("tril", "triu")
        for k in (0, 1, -2, 99, -99)
    ),
    Row("triu hides", lambda x: x.triu(), np.triu, ((exact([[1.0, 2.0], [NAN, INF]]),),), torch=lambda x: x.triu(), second=False),
    Row("split", lambda x: px.concat(list(reversed(x.split(2, 1))), 1),
        lambda x: np.concatenate([x[:, 2:], x[:, :2]], 1), (_X, (ints(2, 3, 4),))),
    Row("iteration", lambda x: sum((row * i for i, row in enumerate(x)), px.zeros_like(x[0])), lambda x: x[1] + 2 * x[2],
        ((normal(3, 4),), (ints(3, 2),))),
    Row("detach", lambda x: x.detach() * x, lambda x: x * x, ((normal(3),),), torch=lambda x: x.detach() * x, second=False),
    Row("zeros_like", lambda x: px.zeros_like(x) + x, lambda x: x, (_X, (ints(2),))),
    Row("ones_like", lambda x: px.ones_like(x) * x, lambda x: x, (_X, (ints(2),))),
    Row("full_like", lambda x: px.full_like(x, 2) * x, lambda x: 2 * x, (_X, (ints(2),), (normal(0),))),
    Row("full", lambda x: px.full((2, 3), 0.5, device=x.device) * x, lambda x: np.full((2, 3), 0.5) * x, ((normal(3),),)),
    Row("zeros, ones", lambda x: px.zeros((2, 1), device=x.device) + px.ones((1, 3), device=x.device) * x,
        lambda x: np.ones((2, 3)) * x, ((normal(3),), (normal(),))),
    Row("tensor", lambda x: px.tensor([[1.0, 2.0], [3.0, 4.5]], device=x.device) * x,
        lambda x: np.array([[1.0, 2.0], [3.0, 4.5]]) * x, ((normal(2),),)),
]  # fmt: skip

_INDICES: dict[str, Any] = {
    "[1]": lambda x: x[1],
    "[-1]": lambda x: x[-1],
    "[1, 2, 3]": lambda x: x[1, 2, 3],
    "[:]": lambda x: x[:],
    "[...]": lambda x: x[...],
    "[()]": lambda x: x[()],
    "[0:1]": lambda x: x[0:1],
    "[:, 1:]": lambda x: x[:, 1:],
    "[..., -3:-1]": lambda x: x[..., -3:-1],
    "[:, ::2, 1::2]": lambda x: x[:, ::2, 1::2],
    "[::-1]": lambda x: x[::-1],
    "[:, ::-2, 3:0:-1]": lambda x: x[:, ::-2, 3:0:-1],
    "[1, ::-1, 0]": lambda x: x[1, ::-1, 0],
    "[2:1]": lambda x: x[2:1],
    "[:, 5:]": lambda x: x[:, 5:],
    "[:, -9:9]": lambda x: x[:, -9:9],
    "[None]": lambda x: x[None],
    "[:, None, 1]": lambda x: x[:, None, 1],
    "[..., None]": lambda x: x[..., None],
    "[None, ..., 0, None]": lambda x: x[None, ..., 0, None],
    "[1, ..., None, ::-1]": lambda x: x[1, ..., None, ::-1],
}

INDEXING = [
    *(same(f"x{name}", call, *_ALL) for name, call in _INDICES.items()),
    same("x[np.int64(1), np.int32(-1)]", lambda x: x[np.int64(1), np.int32(-1)], *_ALL),
    same("one[...]", lambda x: x[...], (normal(),)),
    same("one[None]", lambda x: x[None], (normal(),), (ints(),)),
    same("none[:, :0]", lambda x: x[:, :0], (normal(2, 3),), (normal(2, 0),)),
    same("none[::-1]", lambda x: x[::-1], (normal(0, 2),)),
    Row("x[indices]", lambda x, i: x[i], lambda x, i: x[i],
        ((normal(4, 3), ints(5, low=-4, high=4)), (ints(4, 3), ints(2, 2, low=0, high=4)), (bools(4), ints(3, low=0, high=4)),
         (normal(4, 3), ints(low=0, high=4)), (normal(4, 3), ints(0, low=0, high=4)))),
    Row("x[:, indices]", lambda x, i: x[:, i], lambda x, i: x[:, i], ((normal(2, 4, 3), ints(5, low=-4, high=4)),)),
    Row("x[1, indices, ::-1]", lambda x, i: x[1, i, ::-1], lambda x, i: x[1][i][:, ::-1],
        ((normal(2, 4, 3), ints(5, low=-4, high=4)),)),
    Row("x[None, ..., indices]", lambda x, i: x[None, ..., i], lambda x, i: x[None, ..., i],
        ((normal(2, 3), ints(2, 2, low=-3, high=3)),)),
    *(
        Row(f"take {axis}", lambda x, i, a=axis: x.take(i, a), lambda x, i, a=axis: np.take(x, i, a),
            ((normal(3, 4, 3), ints(5, low=-3, high=3)), (normal(3, 4, 3), ints(2, 2, low=0, high=3)),
             (normal(3, 4, 3), ints(low=-3, high=3)), (ints(3, 4, 3), ints(2, low=0, high=3)),
             (bools(3, 4, 3), ints(2, low=0, high=3)), (normal(3, 4, 3), ints(0, low=0, high=3))))
        for axis in (0, 1, -1)
    ),
    Row("take repeats", lambda x, i: x.take(i), lambda x, i: np.take(x, i, 0),
        ((normal(3, 2), np.array([1, 1, 1, -2, 0], np.int32)),)),
    *(
        Row(f"take_along_axis {axis}", lambda x, i, a=axis: x.take_along_axis(i, a),
            lambda x, i, a=axis: np.take_along_axis(x, i, a),
            ((normal(3, 3, 3), ints(3, 3, 3, low=-3, high=3)), (ints(3, 3, 3), ints(3, 3, 3, low=0, high=3))))
        for axis in (0, 1, -1)
    ),
    Row("take_along_axis of fewer", lambda x, i: x.take_along_axis(i, 1), lambda x, i: np.take_along_axis(x, i, 1),
        ((normal(3, 4), ints(3, 2, low=-4, high=4)), (normal(3, 4), ints(3, 7, low=-4, high=4)),
         (bools(3, 4), ints(3, 2, low=0, high=4)))),
    Row("embedding", lambda w, i: px.functional.embedding(w, i), lambda w, i: w[i],
        ((normal(5, 3), ints(2, 4, low=0, high=5)), (normal(5, 3), ints(low=0, high=5)), (normal(5, 3), ints(0, 2, low=0)))),
]  # fmt: skip

_CONDITION = bools(3, 4)

JOINS = [
    Row("concat", lambda x, y: px.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1),
        ((normal(2, 3), normal(2, 4)), (ints(2, 3), ints(2, 1)), (bools(2, 3), bools(2, 1)), (normal(2, 3), normal(2, 0)))),
    Row("concat last", lambda x, y: px.concat((x, y, x), -1), lambda x, y: np.concatenate((x, y, x), -1),
        ((normal(2, 2, 3), normal(2, 2, 1)),)),
    Row("concat all", lambda x, y: px.concat([x, y], None), lambda x, y: np.concatenate([x, y], None),
        ((normal(2, 3), normal(4)), (ints(2), ints()), (normal(0), normal()))),
    Row("broadcast_arrays", lambda x, y, z: (lambda a, b, c: px.where(c, a, 2.0 * b))(*px.broadcast_arrays(x, y, z)),
        lambda x, y, z: np.where(z, x, 2.0 * y),
        ((normal(3, 1), normal(2), bools()), (normal(1), normal(0), bools(2, 1)), (normal(), normal(), bools()))),
    *(
        Row(f"meshgrid {indexing}", lambda x, y, z, i=indexing: (lambda a, b, c: a + 10.0 * b * c)(*px.meshgrid(x, y, z, indexing=i)),
            lambda x, y, z, i=indexing: (lambda a, b, c: a + 10.0 * b * c)(*np.meshgrid(x, y, z, indexing=i)),
            ((normal(2), normal(3), normal(4)), (normal(1), normal(0), normal()), (normal(3), normal(), normal())))
        for indexing in ("xy", "ij")
    ),
    Row("meshgrid of one", lambda x: px.meshgrid(x)[0], lambda x: x, ((normal(3),), (ints(3),))),
    Row("concat one", lambda x: px.concat([x]), lambda x: x, ((normal(2, 3),),)),
    Row("concat with a constant", lambda x, y: px.concat([y, x, y]), lambda x, y: np.concatenate([y, x, y]),
        ((normal(2, 3), normal(1, 3)),), constant=(1,)),
    *(
        Row(f"stack {axis}", lambda x, y, a=axis: px.stack([x, y], a), lambda x, y, a=axis: np.stack([x, y], a),
            ((normal(2, 3), other(2, 3)), (ints(2, 3), ints(2, 3)), (normal(2, 0), normal(2, 0))))
        for axis in (0, 1, -1)
    ),
    Row("stack of one", lambda x, y: px.stack([x, y]), lambda x, y: np.stack([x, y]), ((normal(), other()),)),
    Row("where", lambda c, x, y: px.where(c, x, y), np.where,
        ((_CONDITION, normal(3, 4), other(3, 4)), (_CONDITION, normal(4), normal(3, 1)), (bools(), normal(2, 3), other(2, 3)),
         (bools(2, 1, 1), normal(3, 4), normal()), (_CONDITION, ints(3, 4), ints(4)), (_CONDITION, bools(3, 4), bools(4)),
         (bools(0, 3), normal(0, 3), normal(3)))),
    Row("where number left", lambda c, x: px.where(c, 0.5, x), lambda c, x: np.where(c, 0.5, x), ((_CONDITION, normal(3, 4)),)),
    Row("where number right", lambda c, x: px.where(c, x, 2), lambda c, x: np.where(c, x, 2),
        ((_CONDITION, normal(4)), (_CONDITION, ints(4)))),
    Row("where two numbers", lambda c: px.where(c, 1.5, -2.0), lambda c: np.where(c, 1.5, -2.0), ((_CONDITION,),)),
    Row("where two ints", lambda c: px.where(c, 1, -2), lambda c: np.where(c, 1, -2), ((_CONDITION,),)),
    Row("where int and float", lambda c: px.where(c, 1, -0.5), lambda c: np.where(c, 1, -0.5), ((_CONDITION,),)),
    Row("where two truths", lambda c: px.where(c, False, True), lambda c: ~c, ((_CONDITION,),)),
    Row("where NaN is not taken", lambda c, x, y: px.where(c, x, y),
        np.where, ((np.array([True, False]), exact([1.0, NAN]), exact([INF, 2.0])),), torch=lambda *a: torch.where(*a), second=False),
    Row("where log of zero is not taken", lambda c, x: px.where(c, x, 1.0).log(), lambda c, x: np.log(np.where(c, x, 1.0)),
        ((np.array([True, False]), exact([2.0, 0.0])),), torch=lambda c, x: torch.where(c, x, 1.0).log(), second=False),
]  # fmt: skip


def _created(name: str, call: Callable[[Any], Any], expected: Any) -> Row:
    return Row(name, lambda x: call(x.device), lambda x: np.asarray(expected), ((ints(),),), gradient=False)


CREATION = [
    _created("arange of floats", lambda d: px.arange(0.5, 3.0, 0.25, device=d), np.arange(0.5, 3.0, 0.25)),
    _created("arange of one float", lambda d: px.arange(3.5, device=d), [0.0, 1.0, 2.0, 3.0]),
    _created("arange of floats backwards", lambda d: px.arange(1, -1.0, -0.3, device=d), np.arange(1, -1.0, -0.3)),
    _created("arange of no floats", lambda d: px.arange(1.0, 1.0, device=d), np.zeros(0)),
    _created("linspace", lambda d: px.linspace(-1.0, 2.0, 7, device=d), np.linspace(-1.0, 2.0, 7)),
    _created("linspace open", lambda d: px.linspace(3, 1, 4, endpoint=False, device=d), [3.0, 2.5, 2.0, 1.5]),
    _created("linspace of one", lambda d: px.linspace(3, 1, 1, device=d), [3.0]),
    _created("linspace of nothing", lambda d: px.linspace(3, 1, 0, device=d), np.zeros(0)),
    _created("logspace", lambda d: px.logspace(-1.0, 2.0, 5, device=d), np.logspace(-1.0, 2.0, 5)),
    _created("logspace of base two", lambda d: px.logspace(0, 4, 4, base=2.0, endpoint=False, device=d), [1.0, 2.0, 4.0, 8.0]),
    *(
        _created(f"eye {n} {m} {k}", lambda d, n=n, m=m, k=k: px.eye(n, m, k, device=d), np.eye(n, m, k))
        for n, m, k in ((3, None, 0), (2, 4, 1), (4, 2, -1), (3, 3, 7), (0, 3, 0), (2, 0, 0))
    ),
    *(
        _created(f"tri {n} {m} {k}", lambda d, n=n, m=m, k=k: px.tri(n, m, k, device=d), np.tri(n, m, k))
        for n, m, k in ((3, None, 0), (2, 4, 1), (4, 2, -1), (3, 3, 7), (3, 3, -7), (0, 3, 0), (2, 0, 0))
    ),
    _created("zeros of a kind", lambda d: px.zeros((2, 3), kind=px.Int, device=d), np.zeros((2, 3), np.int32)),
    _created("ones of a kind", lambda d: px.ones((2, 0), kind=px.Bool, device=d), np.ones((2, 0), np.bool_)),
    _created("full of rank 0", lambda d: px.full((), 2.5, device=d), 2.5),
    Row("full_like bool", lambda x: px.full_like(x, True), np.ones_like, ((bools(2, 3),),), gradient=False),
    Row("full_like number", lambda x: px.full_like(x, -1.5) * x, lambda x: -1.5 * x, ((normal(2, 3),), (normal(),))),
]  # fmt: skip


ROWS: list[Row] = [*MOVES, *INDEXING, *JOINS, *CREATION]
