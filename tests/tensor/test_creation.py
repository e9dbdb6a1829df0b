"""Tensors that cannot be made say which numbers were given, and what would be right; draws, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, PhloxError, RangeError, ShapeError

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy())]
INF = float("inf")

CASES: dict[str, tuple[Callable[[Any], Any], type[PhloxError], tuple[str, ...]]] = {
    "arange step": (lambda d: px.arange(0.0, 1.0, 0.0, device=d), RangeError, ("arange", "zero", "0.0, 1.0, 0.0")),
    "arange without end": (lambda d: px.arange(INF, device=d), RangeError, ("arange", "finite", "inf")),
    "arange of words": (lambda d: px.arange(cast(Any, "a"), device=d), KindError, ("arange", "'a'")),
    "arange too wide": (lambda d: px.arange(1e39, 3e39, 1e39, device=d), RangeError, ("1e+39", "float32")),
    "linspace size": (lambda d: px.linspace(0, 1, -1, device=d), ShapeError, ("linspace", "-1")),
    "linspace by half": (lambda d: px.linspace(0, 1, cast(Any, 1.5), device=d), ShapeError, ("linspace", "1.5")),
    "linspace without end": (lambda d: px.linspace(0, INF, 3, device=d), RangeError, ("linspace", "inf")),
    "linspace of words": (lambda d: px.linspace(cast(Any, [0]), 1, 2, device=d), KindError, ("linspace", "[0]")),
    "logspace": (lambda d: px.logspace(0, 400, 3, device=d), RangeError, ("logspace", "400")),
    "logspace base": (lambda d: px.logspace(0, 1, 3, base=-2.0, device=d), RangeError, ("logspace", "-2.0")),
    "eye": (lambda d: px.eye(-1, device=d), ShapeError, ("eye", "-1")),
    "tri": (lambda d: px.tri(2, -3, device=d), ShapeError, ("tri", "-3")),
    "full_like kind": (lambda d: px.full_like(px.arange(3, device=d), 0.5), KindError, ("full_like", "Int", "0.5")),
    "full_like truth": (lambda d: px.full_like(px.ones((1,), device=d), True), KindError, ("full_like", "1 or 0")),
    "full_like word": (lambda d: px.full_like(px.ones((1,), device=d), cast(Any, "a")), KindError, ("'a'",)),
    "exponential": (lambda d: px.random.exponential((2,), -1.0, device=d), RangeError, ("exponential", "-1.0")),
    "truncated_normal": (
        lambda d: px.random.truncated_normal((2,), low=5.0, high=9.0, device=d),
        RangeError,
        ("truncated_normal", "5.0", "9.0"),
    ),
    "truncated_normal std": (lambda d: px.random.truncated_normal((2,), 0.0, -1.0, device=d), RangeError, ("-1.0",)),
    "bernoulli of a tensor": (
        lambda d: px.random.bernoulli((2,), px.tensor([0.5, 1.5], device=d)),
        RangeError,
        ("bernoulli", "between 0 and 1"),
    ),
    "bernoulli shape": (
        lambda d: px.random.bernoulli((3,), px.tensor([0.5, 0.5], device=d)),
        ShapeError,
        ("broadcast_to", "(2,)", "(3,)"),
    ),
    "categorical of nothing": (
        lambda d: px.random.categorical(px.zeros((2, 0), device=d)),
        ShapeError,
        ("categorical", "axis 1", "(2, 0)"),
    ),
    "categorical kind": (lambda d: px.random.categorical(cast(Any, px.arange(3, device=d))), KindError, (".float()",)),
    "categorical of neither": (lambda d: px.random.categorical(), KindError, ("logits", "probs")),
    "categorical impossible": (
        lambda d: px.random.categorical(px.full((3,), -INF, device=d)),
        RangeError,
        ("categorical", "positive"),
    ),
    "categorical negative": (
        lambda d: px.random.categorical(probs=px.tensor([2.0, -1.0], device=d)),
        RangeError,
        ("categorical", "negative"),
    ),
    "categorical undefined": (
        lambda d: px.random.categorical(px.tensor([0.0, float("nan")], device=d)),
        RangeError,
        ("categorical", "finite"),
    ),
    "choice of too few": (
        lambda d: px.random.choice(3, (2, 2), replace=False, device=d),
        RangeError,
        ("choice", "4 of 3", "replacement"),
    ),
    "choice of nothing": (lambda d: px.random.choice(0, (1,), device=d), RangeError, ("choice", "1 of 0")),
    "choice probs": (
        lambda d: px.random.choice(3, (1,), probs=px.ones((2,), device=d)),
        ShapeError,
        ("choice", "(3,)", "(2,)"),
    ),
    "choice of the impossible": (
        lambda d: px.random.choice(3, (2,), replace=False, probs=px.tensor([0.0, 1.0, 0.0], device=d)),
        RangeError,
        ("choice", "2", "positive"),
    ),
    "permutation": (lambda d: px.random.permutation(-1, device=d), ShapeError, ("permutation", "-1")),
    "shuffle": (lambda d: px.random.shuffle(px.ones((2,), device=d), 1), ShapeError, ("shuffle", "axis 1", "(2,)")),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_made(case: str, backend: Any) -> None:
    call, error, parts = CASES[case]
    with pytest.raises(error) as caught:
        call(backend.device())
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)
