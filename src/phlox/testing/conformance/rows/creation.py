# ruff: noqa: E501
# pyright: standard
"""Creation of tensors; the argument is the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox.testing.conformance.row import Row, bools, ints, normal


def _made(name: str, call: Callable[[Any], Any], wanted: Any) -> Row:
    return Row(name, lambda x: call(x.device), lambda x: np.asarray(wanted), ((ints(),),), gradient=False)


ROWS: list[Row] = [
    _made("arange of floats", lambda d: px.arange(0.5, 3.0, 0.25, device=d), np.arange(0.5, 3.0, 0.25)),
    _made("arange of one float", lambda d: px.arange(3.5, device=d), [0.0, 1.0, 2.0, 3.0]),
    _made("arange of floats backwards", lambda d: px.arange(1, -1.0, -0.3, device=d), np.arange(1, -1.0, -0.3)),
    _made("arange of no floats", lambda d: px.arange(1.0, 1.0, device=d), np.zeros(0)),
    _made("linspace", lambda d: px.linspace(-1.0, 2.0, 7, device=d), np.linspace(-1.0, 2.0, 7)),
    _made("linspace open", lambda d: px.linspace(3, 1, 4, endpoint=False, device=d), [3.0, 2.5, 2.0, 1.5]),
    _made("linspace of one", lambda d: px.linspace(3, 1, 1, device=d), [3.0]),
    _made("linspace of nothing", lambda d: px.linspace(3, 1, 0, device=d), np.zeros(0)),
    _made("logspace", lambda d: px.logspace(-1.0, 2.0, 5, device=d), np.logspace(-1.0, 2.0, 5)),
    _made("logspace of base two", lambda d: px.logspace(0, 4, 4, base=2.0, endpoint=False, device=d), [1.0, 2.0, 4.0, 8.0]),
    *(
        _made(f"eye {n} {m} {k}", lambda d, n=n, m=m, k=k: px.eye(n, m, k, device=d), np.eye(n, m, k))
        for n, m, k in ((3, None, 0), (2, 4, 1), (4, 2, -1), (3, 3, 7), (0, 3, 0), (2, 0, 0))
    ),
    *(
        _made(f"tri {n} {m} {k}", lambda d, n=n, m=m, k=k: px.tri(n, m, k, device=d), np.tri(n, m, k))
        for n, m, k in ((3, None, 0), (2, 4, 1), (4, 2, -1), (3, 3, 7), (3, 3, -7), (0, 3, 0), (2, 0, 0))
    ),
    _made("zeros of a kind", lambda d: px.zeros((2, 3), kind=px.Int, device=d), np.zeros((2, 3), np.int32)),
    _made("ones of a kind", lambda d: px.ones((2, 0), kind=px.Bool, device=d), np.ones((2, 0), np.bool_)),
    _made("full of rank 0", lambda d: px.full((), 2.5, device=d), 2.5),
    Row("full_like bool", lambda x: px.full_like(x, True), np.ones_like, ((bools(2, 3),),), gradient=False),
    Row("full_like number", lambda x: px.full_like(x, -1.5) * x, lambda x: -1.5 * x, ((normal(2, 3),), (normal(),))),
]  # fmt: skip
