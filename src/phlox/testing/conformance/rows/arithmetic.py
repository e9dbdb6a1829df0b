# ruff: noqa: E501
# pyright: standard
"""Operators and elementwise functions of Float tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox.testing.conformance.row import (
    INF,
    NAN,
    SHAPES,
    SPECIAL,
    Row,
    exact,
    normal,
    other,
    positive,
    same,
    sp,
    torch,
    unit,
)


def _unary(
    name: str,
    reference: Callable[..., Any],
    domain: Callable[..., Any] = normal,
    **options: Any,
) -> Row:
    samples = tuple((domain(*shape),) for shape in SHAPES)
    specials = options.pop("specials", ((SPECIAL,),))
    return Row(name, lambda x: getattr(x, name)(), reference, samples, specials, **options)


def _silu(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return x * sp.expit(x)


UNARY = [
    _unary("abs", np.abs),
    _unary("sign", np.sign, second=False),
    _unary("exp", np.exp),
    _unary("expm1", np.expm1, specials=((SPECIAL,), (exact([1e-7, -1e-7, 1e-20]),))),
    _unary("log", np.log, positive),
    _unary("log1p", np.log1p, positive, specials=((SPECIAL,), (exact([1e-7, -1e-7, 1e-20]),))),
    _unary("log2", np.log2, positive),
    _unary("log10", np.log10, positive),
    _unary("sqrt", np.sqrt, positive),
    _unary("rsqrt", lambda x: 1.0 / np.sqrt(x), positive, specials=((exact([4.0, 0.0, INF, NAN, -1.0]),),)),
    _unary("square", np.square),
    _unary("reciprocal", lambda x: 1.0 / x, positive),
    _unary("sin", np.sin),
    _unary("cos", np.cos),
    _unary("tan", np.tan, unit),
    _unary("tanh", np.tanh),
    _unary("erf", lambda x: sp.erf(x)),
    _unary("floor", np.floor, second=False),
    _unary("ceil", np.ceil, second=False),
    _unary("round", np.rint, second=False, specials=((SPECIAL,), (exact([0.5, 1.5, 2.5, -0.5, -1.5]),))),
    _unary("relu", lambda x: np.maximum(x, 0.0), second=False),
    _unary("sigmoid", lambda x: sp.expit(x)),
    _unary("silu", _silu, noisy=True),
    _unary("softplus", lambda x: np.logaddexp(x, 0.0), specials=((SPECIAL,), (exact([100.0, -100.0]),))),
    same("neg", lambda x: -x, *((normal(*shape),) for shape in SHAPES), specials=((SPECIAL,),)),
    same("pos", lambda x: +x, (normal(3),)),
    same("abs()", lambda x: abs(x), (normal(3),)),
    Row("isnan", lambda x: x.isnan(), np.isnan, ((normal(3),), (SPECIAL,), (normal(0),)), gradient=False),
    Row("isinf", lambda x: x.isinf(), np.isinf, ((normal(3),), (SPECIAL,), (normal(0),)), gradient=False),
    Row("isfinite", lambda x: x.isfinite(), np.isfinite, ((normal(3),), (SPECIAL,), (normal(0),)), gradient=False),
    # Without a derivative, use PyTorch's.
    Row("abs at 0", lambda x: x.abs(), np.abs, ((exact([0.0, -0.0, 1.0]),),), torch=lambda *a: torch.abs(*a), second=False),
    Row("relu at 0", lambda x: x.relu(), lambda x: np.maximum(x, 0), ((exact([0.0, -0.0, 1.0, -1.0]),),),
        torch=lambda *a: torch.relu(*a), second=False),
    Row("sqrt at 0", lambda x: x.sqrt(), np.sqrt, ((exact([0.0, 4.0]),),), torch=lambda *a: torch.sqrt(*a), second=False),
    Row("softplus far out", lambda x: x.softplus(), lambda x: np.logaddexp(x, 0.0), ((exact([-90.0, 0.0, 90.0]),),),
        torch=lambda x: -torch.nn.functional.logsigmoid(-x)),
]  # fmt: skip

_PAIRS = (
    (normal(3, 4), other(3, 4)),
    (normal(3, 4), normal(4)),
    (normal(3, 1), normal(2, 1, 4)),
    (normal(), normal(2, 3)),
    (normal(), other()),
    (normal(0, 3), normal(3)),
    (normal(1), normal(0)),
    (normal(2, 0, 3), normal(1, 3)),
)
_POSITIVE_PAIRS = tuple((x, exact(np.exp(np.clip(y, -1, 1)))) for x, y in _PAIRS)
_GRID = tuple(np.meshgrid(SPECIAL, SPECIAL))
_TIES = ((exact([1.0, 2.0, 3.0, 3.0]), exact([2.0, 2.0, 1.0, 3.0])),)

BINARY = [
    same("add", lambda x, y: x + y, *_PAIRS, specials=(_GRID,), noisy=True),
    same("sub", lambda x, y: x - y, *_PAIRS, specials=(_GRID,), noisy=True),
    same("mul", lambda x, y: x * y, *_PAIRS, specials=(_GRID,), noisy=True),
    same("div", lambda x, y: x / y, *_POSITIVE_PAIRS, specials=(_GRID,)),
    Row("maximum", lambda x, y: x.maximum(y), np.maximum, _PAIRS, (_GRID,), second=False),
    Row("minimum", lambda x, y: x.minimum(y), np.minimum, _PAIRS, (_GRID,), second=False),
    Row("px.maximum", lambda x, y: px.maximum(x, y), np.maximum, _PAIRS[:1], second=False),
    Row("px.minimum", lambda x, y: px.minimum(x, y), np.minimum, _PAIRS[:1], second=False),
    Row("maximum ties", lambda x, y: x.maximum(y), np.maximum, _TIES, torch=lambda *a: torch.maximum(*a), second=False),
    Row("minimum ties", lambda x, y: x.minimum(y), np.minimum, _TIES, torch=lambda *a: torch.minimum(*a), second=False),
    Row("pow", lambda x, y: x**y, np.power, tuple((exact(y + 0.25), x) for x, y in _POSITIVE_PAIRS)),
    Row(
        "pow of zero", lambda x, y: x**y, np.power,
        ((exact([0.0, 0.0, 0.0, 0.0]), exact([0.0, 1.0, 2.0, 3.5])),), torch=lambda *a: torch.pow(*a), second=False,
    ),
    Row(
        "pow of negatives", lambda x, y: x**y, np.power,
        ((exact([-2.0, -2.0, -1.5, -3.0, -0.5]), exact([2.0, 3.0, 0.0, 1.0, -1.0])),), torch=lambda *a: torch.pow(*a), constant=(1,),
    ),
    Row("pow specials", lambda x, y: x**y, np.power, (), (_GRID,)),
    *(
        Row(f"x ** {y}", lambda x, y=y: x**y, lambda x, y=y: np.power(x, float(y)),
            ((normal(3, 4) if isinstance(y, int) and y >= 0 else positive(3, 4),), (positive(),)),
            ((SPECIAL,),))
        for y in (0, 1, 2, 3, 2.0, 0.5, -1, -2.0, 2.5)
    ),
    Row("x ** 2 at 0", lambda x: x**2, np.square, ((exact([0.0, -0.0]),),), torch=lambda x: x**2),
    Row("x ** 0 at 0", lambda x: x**0, lambda x: x**0, ((exact([0.0, 1.0]),),), torch=lambda x: x**0, second=False),
    Row("x ** 1 at 0", lambda x: x**1, lambda x: x, ((exact([0.0, 1.0]),),), torch=lambda x: x**1),
    Row("x ** 0.5 at 0", lambda x: x**0.5, np.sqrt, ((exact([0.0, 4.0]),),), torch=lambda x: x**0.5, second=False),
    same("2.5 ** x", lambda x: 2.5**x, (normal(3, 4),), (normal(),)),
    Row("0.0 ** x", lambda x: 0.0**x, lambda x: 0.0**x, ((exact([1.0, 2.5]),),), torch=lambda x: 0.0**x, second=False),
    # A Python number on either side.
    *(
        same(f"{name} {number!r}", lambda x, f=f, number=number: f(x, number), (positive(3, 4),), (positive(),))
        for number in (2, -0.5)
        for name, f in {
            "x +": lambda x, n: x + n, "+ x,": lambda x, n: n + x, "x -": lambda x, n: x - n, "- x,": lambda x, n: n - x,
            "x *": lambda x, n: x * n, "* x,": lambda x, n: n * x, "x /": lambda x, n: x / n, "/ x,": lambda x, n: n / x,
        }.items()
    ),
    Row("the sign of a zero", lambda x: 1.0 / (x * 0.0), lambda x: np.full(2, np.inf), (), ((exact([1.0, 2.0]),),)),
    Row("the sign of a minus zero", lambda x: 1.0 / (x * -0.0), lambda x: np.full(2, -np.inf), (), ((exact([1.0, 2.0]),),)),
    Row("maximum number", lambda x: x.maximum(0.25), lambda x: np.maximum(x, 0.25), ((normal(3, 4),), (normal(),)),
        ((SPECIAL,),), second=False),
    Row("minimum number", lambda x: x.minimum(1), lambda x: np.minimum(x, 1), ((normal(3, 4),),), ((SPECIAL,),),
        second=False),
    Row("one operand twice", lambda x: (x * x + x) / (x + 3.5), lambda x: (x * x + x) / (x + 3.5), ((normal(3, 4),),)),
    Row("clip", lambda x: x.clip(-0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), ((normal(3, 4),), (normal(),), (normal(0),)),
        ((SPECIAL,),), second=False),
    Row("clip below", lambda x: x.clip(low=0), lambda x: np.maximum(x, 0), ((normal(3, 4),),), ((SPECIAL,),), second=False),
    Row("clip above", lambda x: x.clip(high=0.5), lambda x: np.minimum(x, 0.5), ((normal(3, 4),),), second=False),
    Row("clip nothing", lambda x: x.clip(), lambda x: x, ((normal(3, 4),),)),
    Row("clip at the bounds", lambda x: x.clip(-0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5),
        ((exact([-0.5, 0.5, 0.0, 2.0]),),), torch=lambda x: x.clip(-0.5, 0.5), second=False),
]  # fmt: skip

_COMPARED = ((normal(3, 4), other(3, 4)), (exact([1, 2, 3]), exact([1, 1, 4])), (normal(), normal(2, 3)), _GRID)

COMPARISON = [
    same(f"float {name}", f, *_COMPARED, gradient=False)
    for name, f in {
        "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y,
        "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
    }.items()
] + [
    same(f"float {name} number", f, (exact([0.5, 1.0, -1.0, NAN]),), (normal(0),), gradient=False)
    for name, f in {
        "==": lambda x: x == 0.5, "!=": lambda x: x != 0.5, "<": lambda x: x < 0.5, "<=": lambda x: x <= 0.5,
        ">": lambda x: x > 1, ">=": lambda x: x >= 1, "reflected <": lambda x: x > 0.5, "reflected >=": lambda x: x <= 1,
    }.items()
]  # fmt: skip

ROWS: list[Row] = [*UNARY, *BINARY, *COMPARISON]
