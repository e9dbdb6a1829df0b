"""Caches of the last tokens, or of few bits: attention with them against attention without a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ShapeError
from phlox.nn.small_caches import owned

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]


def call(layer: Any, x: Any, cache: Any) -> Any:
    return layer(x, cache=cache)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("is_owned", [False, True])
def test_window(backend: Backend, is_owned: bool) -> None:
    """Any parts, with padding at the beginning of a row, or after the tokens of a part."""
    if is_owned and isinstance(backend, Jax):
        return
    px.random.seed(0)
    config = nn.RotaryEncodingConfig(8)
    layer = nn.MultiHeadAttention(16, 2, causal=True, window=4, rotary=config, device=backend).valid()
    x = px.tensor(np.random.default_rng(0).normal(size=(2, 15, 16)), kind=px.Float, device=backend)
    expected = [layer(x[:1]).numpy(), layer(x[1:, 3:]).numpy()]
    run = px.compile(call) if isinstance(backend, Jax) else call
    for parts in ([1] * 15, [2, 1, 1, 4, 1, 5, 1], [9, 1, 1, 3, 1]):
        cache: Any = nn.WindowKeyValueCache.of(layer.init_cache(2, 1), 4)
        cache = cache._replace(start=px.tensor([0, 3], device=backend))
        if is_owned:
            cache = owned(cache)
        begin, pieces = 0, []
        for size in parts:
            part = x[:, begin : begin + size]
            if size > 1:  # two more that do not count
                part = px.concat([part, x[:, :2] * 9.0], 1)
                cache = cache._replace(new=size)
            y, cache = run(layer, part, cache)
            pieces.append(y[:, :size].numpy())
            begin += size
            assert cache.position.item() == begin and cache.window == 4 and cache.new is None
        found = np.concatenate(pieces, 1)
        np.testing.assert_allclose(found[:1], expected[0], atol=2e-6)
        np.testing.assert_allclose(found[1:, 3:], expected[1], atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize(("cls", "error"), [(nn.Int8KeyValueCache, 0.02), (nn.Int4KeyValueCache, 0.25)])
def test_few_bits(backend: Backend, cls: Any, error: float) -> None:
    """The error is that of rounding; bytes are a fraction; all ways of appending give the same."""
    px.random.seed(0)
    layer: Any = nn.MultiHeadAttention(64, 2, causal=True, device=backend).valid()
    x = px.tensor(np.random.default_rng(0).normal(size=(2, 6, 64)), kind=px.Float, device=backend)
    full = layer.init_cache(2, 8)
    expected = layer(x).numpy()
    run = px.compile(call, donate=("cache",)) if isinstance(backend, Jax) else call
    results = []
    for parts in ([6], [1, 3, 1, 1]):
        cache: Any = cls.of(layer.init_cache(2, 1), 8)
        if not isinstance(backend, Jax) and len(parts) > 1:
            cache = owned(cache)
        assert cache.capacity == 8
        small = sum(array.nbytes for array in cache[:4])
        assert small == (full.key.nbytes + full.value.nbytes) * (cls.bits / 32 + 1 / 32)
        begin, pieces = 0, []
        for size in parts:
            y, cache = run(layer, x[:, begin : begin + size], cache)
            pieces.append(y.numpy())
            begin += size
        results.append(np.concatenate(pieces, 1))
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)
    assert 0 < np.abs(results[0] - expected).max() < error * np.abs(expected).max()
    key = px.functional.unpack(cache.key, f"int{cls.bits}") * cache.key_scale
    _, exact = layer(x, cache=full)
    bound = exact.key.abs().max(-1, keepdims=True).numpy() / (2**cls.bits - 2) * 1.001
    assert (np.abs(key.numpy() - exact.key.numpy()) <= bound).all()


def test_heads_that_do_not_fit() -> None:
    layer = nn.MultiHeadAttention(12, 2, causal=True)
    with pytest.raises(ShapeError, match="Int4KeyValueCache: heads must have a multiple of 8 elements, got 6"):
        nn.Int4KeyValueCache.of(layer.init_cache(1, 1), 3)
