# ruff: noqa: E501
# pyright: standard
"""Int and Bool tensors, and the conversions between kinds."""

from __future__ import annotations

from typing import Any

import numpy as np

import phlox as px
from phlox.testing.conformance.row import NAN, Row, bools, exact, ints, normal, same

_LEAST, _GREATEST = -(2**31), 2**31 - 1
_EDGES = np.array([_LEAST, _GREATEST, _LEAST + 1, -1, 0, 1, 2], np.int32)
_PAIRS = (
    (ints(3, 4), ints(3, 4, low=-5)),
    (ints(3, 1), ints(2, 1, 4)),
    (ints(), ints(2, 3)),
    (ints(), ints(low=-5)),
    (ints(0, 3), ints(3)),
    tuple(np.meshgrid(_EDGES, _EDGES)),
)
_DIVISORS = tuple((x, np.where(y == 0, 3, y).astype(np.int32)) for x, y in _PAIRS)
_BOOLS = ((bools(3, 4), bools(4)), (bools(), bools(2, 3)), (bools(0, 3), bools(3)), (bools(2, 1), bools(1, 5)))


_SHIFTS = (
    (ints(3, 4), ints(3, 4, low=0)),
    (ints(3, 1), ints(2, 1, 4, low=0)),
    (ints(), ints(2, low=0)),
    (ints(0, 3), ints(3)),
    tuple(np.meshgrid(_EDGES, np.array([0, 1, 5, 30, 31, 32, 33, 64, 1000, -1, -32, _LEAST, _GREATEST], np.int32))),
)


def _left(x: Any, shifts: Any) -> Any:
    """By Python integers, element by element."""
    return _by_python(lambda v, n: v << n if 0 <= n < 32 else 0, x, shifts)


def _right(x: Any, shifts: Any) -> Any:
    return _by_python(lambda v, n: v >> (n if 0 <= n < 32 else 31), x, shifts)


def _by_python(f: Any, x: Any, y: Any) -> Any:
    x, y = np.broadcast_arrays(x, y)
    values = [(f(int(v), int(n)) + 2**31) % 2**32 - 2**31 for v, n in zip(x.flat, y.flat, strict=True)]
    return np.array(values, np.int32).reshape(x.shape)


def _row(name: str, f, *samples, **options) -> Row:
    return same(name, f, *samples, gradient=False, **options)


def _named(name: str, call, reference, *samples) -> Row:
    return Row(name, call, reference, samples, gradient=False)


INT = [
    _row("int add", lambda x, y: x + y, *_PAIRS),
    _row("int sub", lambda x, y: x - y, *_PAIRS),
    _row("int mul", lambda x, y: x * y, *_PAIRS),
    _row("int floordiv", lambda x, y: x // y, *_DIVISORS),
    _row("int mod", lambda x, y: x % y, *_DIVISORS),
    _row("int pow", lambda x, y: x**y, (ints(3, 4), ints(3, 4, low=0, high=5)), (ints(), ints(2, low=0, high=3)),
         (np.array([0, 0, 1, -1, 3, 2], np.int32), np.array([0, 5, 0, 3, 21, 31], np.int32))),
    _row("int x ** 3", lambda x: x**3, (ints(3, 4),)),
    _row("int 2 ** x", lambda x: 2**x, (ints(3, 4, low=0),)),
    *(
        _row(f"int {name}", f, (ints(3, 4, low=1),), (ints(low=1),))
        for name, f in {
            "x + 3": lambda x: x + 3, "3 + x": lambda x: 3 + x, "x - 3": lambda x: x - 3, "3 - x": lambda x: 3 - x,
            "x * -2": lambda x: x * -2, "-2 * x": lambda x: -2 * x, "x // -3": lambda x: x // -3,
            "x // 3": lambda x: x // 3, "-30 // x": lambda x: -30 // x, "x % -3": lambda x: x % -3,
            "30 % x": lambda x: 30 % x,
        }.items()
    ),
    _named("int maximum", lambda x, y: x.maximum(y), np.maximum, *_PAIRS),
    _named("int minimum", lambda x, y: x.minimum(y), np.minimum, *_PAIRS),
    _named("int maximum number", lambda x: x.maximum(2), lambda x: np.maximum(x, 2), (ints(3, 4),)),
    _named("int clip", lambda x: x.clip(-3, 4), lambda x: np.clip(x, -3, 4), (ints(3, 4),), (ints(0),)),
    _named("int clip above", lambda x: x.clip(high=4), lambda x: np.minimum(x, 4), (ints(3, 4),)),
    _row("int divmod 0", lambda x, y: divmod(x, y)[0], *_DIVISORS),
    _row("int divmod 1", lambda x, y: divmod(x, y)[1], *_DIVISORS),
    _row("int divmod number", lambda x: divmod(x, -4)[1], (ints(3, 4),)),
    _row("int divmod of number", lambda x: divmod(30, x)[0], (ints(3, 4, low=1),)),
    _row("int &", lambda x, y: x & y, *_PAIRS),
    _row("int |", lambda x, y: x | y, *_PAIRS),
    _row("int ^", lambda x, y: x ^ y, *_PAIRS),
    _row("int ~", lambda x: ~x, (ints(3, 4),), (_EDGES,), (ints(),), (ints(0),)),
    _named("int <<", lambda x, n: x << n, _left, *_SHIFTS),
    _named("int >>", lambda x, n: x >> n, _right, *_SHIFTS),
    *(
        _named(f"int {name}", f, reference, (_EDGES,), (ints(3, 4),), (ints(),))
        for name, f, reference in (
            ("x & 6", lambda x: x & 6, lambda x: x & 6), ("6 & x", lambda x: 6 & x, lambda x: x & 6),
            ("x | -5", lambda x: x | -5, lambda x: x | -5), ("6 | x", lambda x: 6 | x, lambda x: x | 6),
            ("x ^ 6", lambda x: x ^ 6, lambda x: x ^ 6), ("-6 ^ x", lambda x: -6 ^ x, lambda x: x ^ -6),
            ("x << 3", lambda x: x << 3, lambda x: _left(x, 3)), ("3 << x", lambda x: 3 << x, lambda x: _left(3, x)),
            ("x << 40", lambda x: x << 40, lambda x: x * 0), ("x << -1", lambda x: x << -1, lambda x: x * 0),
            ("x >> 2", lambda x: x >> 2, lambda x: x >> 2), ("-300 >> x", lambda x: -300 >> x, lambda x: _right(-300, x)),
            ("x >> 40", lambda x: x >> 40, lambda x: x >> 31), ("x >> -1", lambda x: x >> -1, lambda x: x >> 31),
        )
    ),
    _named("int matmul", lambda x, y: x @ y, np.matmul,
           (ints(3, 4), ints(4, 2)), (ints(2, 3, 4), ints(4, 5)), (ints(2, 1, 3, 4), ints(5, 4, 2)), (ints(4), ints(4)),
           (ints(3, 4), ints(4)), (ints(4), ints(4, 3)), (ints(0, 4), ints(4, 2)), (ints(3, 0), ints(0, 2)),
           (_EDGES[None, :], _EDGES[:, None])),
    _named("int square", lambda x: x.square(), np.square, (ints(3, 4),), (_EDGES,), (ints(),)),
    _named("int clip by tensors", lambda x, a, b: x.clip(a, b), lambda x, a, b: np.minimum(np.maximum(x, a), b),
           (ints(3, 4), ints(4, low=-5), ints(3, 1, low=0)), (ints(), ints(2, low=-3), ints(2, low=1))),
    _row("int neg", lambda x: -x, (ints(3, 4),), (_EDGES,), (ints(),)),
    _named("int abs", lambda x: x.abs(), np.abs, (ints(3, 4),), (_EDGES,)),
    _named("int sign", lambda x: x.sign(), np.sign, (ints(3, 4),), (_EDGES,)),
    *(
        _row(f"int {name}", f, *_PAIRS)
        for name, f in {
            "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y,
            "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
        }.items()
    ),
    _row("int < number", lambda x: x < 2, (ints(3, 4),)),
    *(
        Row(f"int {name} {axis} {keepdims}", lambda x, n=name, a=axis, k=keepdims: getattr(x, n)(a, keepdims=k),
            lambda x, n=name, a=axis, k=keepdims: getattr(np, n)(x, axis=a, keepdims=k).astype(np.int32),
            ((ints(2, 3, 4),),), gradient=False)
        for name in ("sum", "prod", "max", "min")
        for axis, keepdims in ((None, False), (1, True), ((0, 2), False), (-1, False))
    ),
    _named("int sum wraps", lambda x: x.sum(), lambda x: x.sum(dtype=np.int32), (_EDGES,)),
    _named("int prod wraps", lambda x: x.prod(), lambda x: x.prod(dtype=np.int32), (np.full(5, 99999, np.int32),)),
    _named("int sum of nothing", lambda x: x.sum(0), lambda x: x.sum(0, dtype=np.int32), (ints(0, 3),)),
    _named("int prod of nothing", lambda x: x.prod(0), lambda x: x.prod(0, dtype=np.int32), (ints(0, 3),)),
    _named("int sum of one", lambda x: x.sum(), lambda x: x, (ints(),)),
    _named("int cumsum", lambda x: x.cumsum(1), lambda x: x.cumsum(1, dtype=np.int32), (ints(3, 4),), (ints(2, 0),)),
    *(
        _named(f"int {name} {axis}", lambda x, n=name, a=axis: getattr(x, n)(a),
               lambda x, n=name, a=axis: getattr(np, n)(x, axis=a), (ints(3, 4),), (ints(2, 6, low=0, high=2),))
        for name in ("argmax", "argmin")
        for axis in (None, 0, -1)
    ),
    _named("arange", lambda x: px.arange(7, device=x.device) + x, lambda x: np.arange(7) + x, (ints(),)),
    _named("arange backwards", lambda x: px.arange(7, -3, -2, device=x.device) + x, lambda x: np.arange(7, -3, -2) + x,
           (ints(),)),
    _named("arange of nothing", lambda x: px.arange(3, 3, device=x.device) + x, lambda x: np.arange(0) + x, (ints(),)),
    _named("full int", lambda x: px.full((2, 3), 7, device=x.device), lambda x: np.full((2, 3), 7), (ints(),)),
    _named("full_like int", lambda x: px.full_like(x, 7), lambda x: np.full_like(x, 7), (ints(2, 0),), (ints(3),)),
    _named("one_hot", lambda x: px.one_hot(x, 5), lambda x: np.eye(5)[x], (ints(2, 3, low=0, high=5),), (ints(0, low=0),),
           (ints(low=0, high=5),)),
    _named("eye", lambda x: px.eye(3, device=x.device), lambda x: np.eye(3), (ints(),)),
]  # fmt: skip

BOOL = [
    _row("and", lambda x, y: x & y, *_BOOLS),
    _row("or", lambda x, y: x | y, *_BOOLS),
    _row("xor", lambda x, y: x ^ y, *_BOOLS),
    _row("bool ==", lambda x, y: x == y, *_BOOLS),
    _row("bool !=", lambda x, y: x != y, *_BOOLS),
    _row("bool & number", lambda x: x & True, (bools(3, 4),)),
    _row("bool | number", lambda x: x | True, (bools(3, 4),)),
    _row("bool ^ number", lambda x: x ^ True, (bools(3, 4),)),
    _row("number & bool", lambda x: True & x, (bools(3, 4),)),
    _row("number | bool", lambda x: False | x, (bools(3, 4),)),
    _row("number ^ bool", lambda x: True ^ x, (bools(3, 4),)),
    _row("bool == number", lambda x: x == False, (bools(3, 4),)),  # noqa: E712
    _row("invert", lambda x: ~x, (bools(3, 4),), (bools(),), (bools(0),)),
    *(
        _named(f"{name} {axis} {keepdims}", lambda x, n=name, a=axis, k=keepdims: getattr(x, n)(a, keepdims=k),
               lambda x, n=name, a=axis, k=keepdims: getattr(np, n)(x, axis=a, keepdims=k), (bools(2, 3, 4),))
        for name in ("any", "all")
        for axis, keepdims in ((None, False), (1, True), ((0, 2), False), (-1, False))
    ),
    _named("any of nothing", lambda x: x.any(0), lambda x: x.any(0), (bools(0, 3),)),
    _named("all of nothing", lambda x: x.all(0), lambda x: x.all(0), (bools(0, 3),)),
    _named("any of one", lambda x: x.any(), lambda x: x.any(), (bools(),)),
    _named("full bool", lambda x: px.full((2, 3), True, device=x.device), lambda x: np.full((2, 3), True), (bools(),)),
    _named("zeros_like bool", lambda x: px.zeros_like(x), np.zeros_like, (bools(2, 3),)),
    _named("ones_like bool", lambda x: px.ones_like(x), np.ones_like, (bools(2, 3),)),
]  # fmt: skip

CONVERSION = [
    _named("float to int", lambda x: x.int(), lambda x: np.trunc(x).astype(np.int32), (normal(3, 4, scale=5.0),),
           (exact([-0.5, 0.5, 1.9, -1.9, -0.0]),), (normal(0),), (normal(),)),
    Row("float to int at the bounds", lambda x: x.int(), lambda x: x.astype(np.int32), ((exact([-2.0**31, 2.0**31 - 128]),),),
        gradient=False, half=False),
    _named("float to bool", lambda x: x.bool(), lambda x: x.astype(np.bool_), (exact([0.0, -0.0, 1e-30, NAN, -2]),)),
    _named("float to float", lambda x: x.float(), lambda x: x, (normal(3),)),
    _named("int to float", lambda x: x.float(), lambda x: x.astype(np.float32), (ints(3, 4),), (ints(0),), (ints(),)),
    _named("int to bool", lambda x: x.bool(), lambda x: x.astype(np.bool_), (ints(3, 4, low=-1, high=2),)),
    _named("bool to float", lambda x: x.float(), lambda x: x.astype(np.float64), (bools(3, 4),), (bools(),)),
    _named("bool to int", lambda x: x.int(), lambda x: x.astype(np.int32), (bools(3, 4),), (bools(0),)),
]  # fmt: skip

ROWS: list[Row] = [*INT, *BOOL, *CONVERSION]
