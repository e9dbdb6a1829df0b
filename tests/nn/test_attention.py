"""Attention that drops some of its weights, as a function and in a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]

RNG = np.random.default_rng(0)

D, HEADS, BATCH, N, M = 8, 2, 3, 5, 7


def floats(values: Any, device: Any) -> px.Tensor:
    return px.tensor(np.asarray(values), device=device, kind=px.Float)


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_the_function_drops_where_it_is_told_to_and_the_layer_in_training(backend: Backend) -> None:
    device = Autodiff(backend).device()
    layer = nn.MultiHeadAttention(D, HEADS, dropout=0.5, device=device).init(4)
    x = floats(RNG.normal(size=(2, N, D)), device)
    plain = layer.valid()
    with px.random.stream(1) as stream:
        quiet = plain(x.inner()).numpy()
        assert stream.position == 0
        dropped = layer(x).numpy()
        assert stream.position == 1
    assert np.abs(dropped - quiet).max() > 0.01
    with px.random.stream(1):
        np.testing.assert_array_equal(layer(x).numpy(), dropped)
    q = x.inner()[:, None]
    assert (nn.attention(q, q, q, dropout=1.0).numpy() == 0.0).all()
    plain.training = True  # dropout without a tape
    with px.random.stream(1):
        np.testing.assert_allclose(plain(x.inner()).numpy(), dropped, rtol=1e-5, atol=1e-6)


def test_dropped_alike_everywhere() -> None:
    found = []
    for backend in PLAIN:
        layer = nn.MultiHeadAttention(D, HEADS, dropout=0.5, causal=True, device=Autodiff(backend)).init(4)
        with px.random.stream(2):
            found.append(layer(px.ones((2, N, D), device=Autodiff(backend))).numpy())
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-4, atol=1e-6)
