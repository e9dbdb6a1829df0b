"""Sizes of open axes: integers that also know how they came about."""

from __future__ import annotations

import itertools
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
    ratio,
    same_size,
    smaller,
    terms_of,
)
from phlox.backend.tracing.slices import from_start, open_slice, slice_size

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
    for real in (1 / (N * M), (N - 1) / 2.0, N * 0.5 + 1.0, -(N / 2), N**-0.5, ratio(2.5, N), ratio(N, M - 1)):
        assert type(real) is DimensionReal and is_open(real)
    assert 1 / (N * M) == 1.0 / 77
    assert type(1.0 / N) is float, "a float on the left decides by itself: the export says then that a size was fixed"
    assert same_size(math.floor(N * 2), 2 * N) and same_size(math.ceil(N), N) and same_size(math.trunc(N), N)
    assert same_size(math.floor(N * 2.0), 2 * N) and same_size(math.floor(N * 0.5), N // 2)


BOUNDS: list[Callable[[Any], Any]] = [
    lambda n: None,
    lambda n: 1,
    lambda n: 4,
    lambda n: -2,
    lambda n: n - 3,
    lambda n: 3 - n,
    lambda n: 5 - 2 * n,
    lambda n: n // 2,
    lambda n: 2 * n,
    lambda n: -n,
]


@pytest.mark.parametrize("step", [None, 2])
@pytest.mark.parametrize("traced", [2, 7])
def test_a_slice_of_an_open_axis_takes_what_python_takes_whatever_its_size(traced: int, step: int | None) -> None:
    axis = Dimension.named("n", traced)
    for start, stop in itertools.product(BOUNDS, BOUNDS):
        part, _ = open_slice(slice(start(axis), stop(axis), step), axis)
        for n in range(10):
            first, last = (evaluate(terms_of(bound), {"n": n}) for bound in (part.start, part.stop))
            right = [*range(n)][start(n) : stop(n) : step]
            assert [*range(n)][first:last:step] == right, (start(n), stop(n), n)
            assert evaluate(terms_of(slice_size(part, axis)), {"n": n}) == len(right)


def test_a_slice_that_goes_backwards_is_reversed() -> None:
    part, backwards = open_slice(slice(None, None, -1), N)
    assert backwards and same_size(part.start, 0) and same_size(part.stop, N)


def test_bounds_that_never_leave_the_axis_stay_short() -> None:
    shown = [
        str(open_slice(slice(*bounds), N)[0]) for bounds in ((None, N // 2), (N // 3, None), (None, -2), (-2, None))
    ]
    assert shown == [
        "slice(0, ((n) // 2), 1)",
        "slice(((n) // 3), n, 1)",
        "slice(0, max(n - 2, 0), 1)",
        "slice(max(n - 2, 0), n, 1)",
    ]


@pytest.mark.parametrize("traced", [4, 7])
def test_an_index_counts_from_the_end_where_it_is_below_zero(traced: int) -> None:
    axis = Dimension.named("n", traced)
    for formula in (lambda n: n - 5, lambda n: 2, lambda n: -1, lambda n: 5 - n):
        place = from_start(formula(axis), axis)
        for n in (4, 5, 8):
            assert [*range(n)][evaluate(terms_of(place), {"n": n})] == [*range(n)][formula(n)]


def test_a_slice_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="flip"):
        open_slice(slice(3, 0, -1), N)


def test_shapes_broadcast() -> None:
    assert broadcast_sizes([(N, 1), (1, 4), (4,)]) == (7, 4)
    assert is_open(broadcast_sizes([(1, 4), (N, 1)])[0])
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_sizes([(N,), (3,)])
