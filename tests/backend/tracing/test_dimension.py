"""Sizes of open axes: integers that also know how they came about."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.backend.tracing.dimension import (
    Dimension,
    DimensionReal,
    as_size,
    broadcast_sizes,
    evaluate,
    is_open,
    larger,
    open_slice,
    same_size,
    slice_size,
    smaller,
    terms_of,
)

N, M = Dimension.named("n", 7), Dimension.named("m", 11)

FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda n, m: 2 * n + m - 3 - (1 - n),
    "products": lambda n, m: n * m * 4 + n * n,
    "window": lambda n, m: (n + 2 - 3) // 2 + 1,
    "rounded up": lambda n, m: -(-n // 4) * 4,
    "rest": lambda n, m: n % 3 + 100 % m + n % m,
    "quotient": lambda n, m: (n * m) // n + (6 * n + 5) // 3,
    "by a sum": lambda n, m: (n * (m + 1)) // (m + 1),
    "divmod": lambda n, m: divmod(n, 4)[0] + 5 * divmod(n, 4)[1],
    "powers": lambda n, m: n**2 + abs(-m),
    "extremes": lambda n, m: smaller(n, m) + larger(n, 9) - smaller(n + 2, n),
    "product of all": lambda n, m: math.prod([n, 2, m]) + sum([n, m, 1]),
}


@given(n=st.integers(1, 50), m=st.integers(1, 50))
@pytest.mark.parametrize("name", FORMULAS)
def test_a_polynomial_is_what_it_was_computed_from(name: str, n: int, m: int) -> None:
    formula = FORMULAS[name]
    traced = formula(N, M)
    assert traced == formula(7, 11)
    assert evaluate(terms_of(traced), {"n": n, "m": m}) == formula(n, m)


def test_what_is_open_no_more_is_a_plain_int() -> None:
    for size in (N - N, (2 * N + 1) % 2, N * M // N - M, (4 * N) % 4, 0 * N):
        assert type(size) is int and not is_open(size)
    assert (2 * N) // 2 is not N and same_size((2 * N) // 2, N) and not same_size(N, 7)


def test_it_is_taken_for_an_int() -> None:
    assert isinstance(N, int) and N == 7 and N == 7 and N != 8 and N < 8 <= M and [*range(N)][-1] == 6
    assert as_size(N) is N and as_size(np.int64(3)) == 3 and type(as_size(True)) is int
    assert f"{N} {2 * N + 1}" == "n 2*n + 1" and repr((N, 4)) == "(n, 4)"
    again = pickle.loads(pickle.dumps(2 * N))  # noqa: S301
    assert again == 14 and same_size(again, 2 * N)


def test_a_cache_of_plain_sizes_is_not_asked() -> None:
    @lru_cache
    def doubled(shape: tuple[int, ...]) -> int:
        return 2 * shape[0]

    assert doubled((7,)) == 14 and type(doubled((7,))) is int
    assert is_open(doubled((N,)))


def test_reals_remember_how_they_were_computed() -> None:
    for real in (1 / (N * M), (N - 1) / 2.0, N * 0.5 + 1.0, -(N / 2)):
        assert type(real) is DimensionReal and is_open(real)
    assert 1 / (N * M) == 1.0 / 77
    assert type(1.0 / N) is float, "a float on the left decides by itself: the export says then that a size was fixed"
    assert same_size(math.floor(N * 2), 2 * N) and same_size(math.ceil(N), N) and same_size(math.trunc(N), N)
    assert same_size(math.floor(N * 2.0), 2 * N) and same_size(math.floor(N * 0.5), N // 2)


SLICES = [slice(None), slice(1, None), slice(None, -1), slice(-2, None), slice(None, 3), slice(None, None, -1),
          slice(2, -1), slice(None, None, 2)]  # fmt: skip


@pytest.mark.parametrize("entry", SLICES, ids=str)
def test_slices_of_open_axes(entry: slice) -> None:
    part, backwards = open_slice(entry, N)
    whole = list(range(7))
    taken = whole[part]
    assert (taken[::-1] if backwards else taken) == whole[entry]
    count = slice_size(part, N)
    for n in (4, 7, 9):
        assert evaluate(terms_of(count), {"n": n}) == len(list(range(n))[entry])


def test_a_slice_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="flip"):
        open_slice(slice(3, 0, -1), N)


def test_shapes_broadcast() -> None:
    assert broadcast_sizes([(N, 1), (1, 4), (4,)]) == (7, 4)
    assert is_open(broadcast_sizes([(1, 4), (N, 1)])[0])
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_sizes([(N,), (3,)])
