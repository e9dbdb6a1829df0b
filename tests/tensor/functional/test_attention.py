# pyright: reportArgumentType=false
"""What cannot be attended to says what was tried, on what, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import functional as f
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.backend.numpy import blocks
from phlox.errors import KindError, RangeError, ShapeError
from tests.backend.plain import Plain

BACKENDS = [NumPy(), Jax(), Autodiff(Torch())]


def ones(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def zeros(device: Any, *shape: int) -> Any:
    return px.zeros(shape, kind=px.Int, device=device)


CASES: dict[str, tuple[Callable[[Any], Any], type[Exception], tuple[str, ...]]] = {
    "rank": (
        lambda d: f.attention(ones(d, 4), ones(d, 4), ones(d, 4)),
        ShapeError,
        ("attention", "(4,)", "[..., heads, n, d]"),
    ),
    "width": (
        lambda d: f.attention(ones(d, 2, 3, 4), ones(d, 2, 3, 5), ones(d, 2, 3, 4)),
        ShapeError,
        ("attention", "(2, 3, 4)", "(2, 3, 5)"),
    ),
    "keys and values": (
        lambda d: f.attention(ones(d, 2, 3, 4), ones(d, 2, 3, 4), ones(d, 2, 2, 4)),
        ShapeError,
        ("attention", "(2, 2, 4)"),
    ),
    "groups": (
        lambda d: f.attention(ones(d, 3, 3, 4), ones(d, 2, 3, 4), ones(d, 2, 3, 4)),
        ShapeError,
        ("attention", "divide", "groups"),
    ),
    "leading axes": (
        lambda d: f.attention(ones(d, 2, 1, 3, 4), ones(d, 3, 1, 3, 4), ones(d, 3, 1, 3, 4)),
        ShapeError,
        ("attention", "(2, 1, 3, 4)"),
    ),
    "kind": (
        lambda d: f.attention(zeros(d, 3, 4), ones(d, 3, 4), ones(d, 3, 4)),
        KindError,
        ("attention", "query", "Int", ".float()"),
    ),
    "mask kind": (
        lambda d: f.attention(ones(d, 3, 4), ones(d, 3, 4), ones(d, 3, 4), mask=zeros(d, 3, 3)),
        KindError,
        ("attention", "mask", "Bool", "Float", "Int"),
    ),
    "mask shape": (
        lambda d: f.attention(ones(d, 3, 4), ones(d, 3, 4), ones(d, 3, 4), mask=ones(d, 2, 3).bool()),
        ShapeError,
        ("attention", "mask", "(2, 3)", "(3, 3)"),
    ),
    "bias rank": (
        lambda d: f.attention(ones(d, 3, 4), ones(d, 3, 4), ones(d, 3, 4), bias=ones(d, 1, 3, 3)),
        ShapeError,
        ("attention", "bias", "(1, 3, 3)", "(3, 3)"),
    ),
    "dropout": (
        lambda d: f.attention(ones(d, 3, 4), ones(d, 3, 4), ones(d, 3, 4), dropout=1.5),
        RangeError,
        ("attention", "dropout", "1.5"),
    ),
    "dropout alone": (
        lambda d: f.attention(ones(d, 3, 4), ones(d, 3, 4), ones(d, 3, 4), dropout=0.5),
        RangeError,
        ("attention", "kept", "phlox.nn.attention"),
    ),
    "nn": (
        lambda d: nn.attention(ones(d, 3, 4), ones(d, 3, 4), ones(d, 3, 4), dropout=-0.5),
        RangeError,
        ("attention", "dropout", "-0.5"),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_errors(case: str, backend: Any) -> None:
    call, error, words = CASES[case]
    with pytest.raises(error) as caught:
        call(backend.device())
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_dropout_is_done_wherever_it_is_asked_for() -> None:
    plain = px.random.normal((2, 8, 4), device=NumPy())
    with px.random.stream(3) as stream:
        np.testing.assert_array_equal(
            nn.attention(plain, plain, plain).numpy(), f.attention(plain, plain, plain).numpy()
        )
        assert stream.position == 0
        dropped = nn.attention(plain, plain, plain, dropout=0.5)
    x = px.Tensor.from_inner(plain)
    with px.random.stream(3):
        first = nn.attention(x, x, x, dropout=0.5)
    np.testing.assert_array_equal(first.numpy(), dropped.numpy())
    with px.random.stream(3):
        kept = px.random.bernoulli((2, 8, 8), 0.5, device=x.device)
    np.testing.assert_array_equal(first.numpy(), f.attention(x, x, x, kept=kept, dropout=0.5).numpy())
    assert nn.attention(x, x, x, dropout=1.0).abs().sum().item() == 0.0


def test_large_is_as_small_and_the_number_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.normal(size=(1, 3, 700, 8)).astype(np.float32) for _ in range(4))
    options = (True, 0.3, 0.0)

    def run(backend: Any) -> list[Any]:
        y, saved = backend.attention_forward(q, k, v, None, None, None, options)
        return [y, *backend.attention_backward(saved, g, (True, True, True, False), options)[:3]]

    several = run(NumPy())
    np.testing.assert_array_equal(several[0], NumPy().attention(q, k, v, None, None, None, options))
    monkeypatch.setattr(blocks, "_pool", lambda process: (ThreadPoolExecutor(1), 0))
    for found, alone, plain in zip(several, run(NumPy()), run(Plain()), strict=True):
        np.testing.assert_array_equal(found, alone)
        np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)
