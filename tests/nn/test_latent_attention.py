"""Latent attention: its formula, gradients, and a cache of latents that gives the same as none."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError

SIZES: dict[str, Any] = {"kv_rank": 6, "d_content": 4, "d_rotary": 2, "d_value": 5}


def layer_of(backend: Backend, **options: Any) -> Any:
    rotary = px.nn.RotaryEncodingConfig(2, interleaved=True)
    layer = px.nn.LatentAttention(8, 3, **SIZES, causal=True, rotary=rotary, **options)
    return layer.to_device(NumPy().device()).init(0).to_device(backend.device())


def by_hand(layer: Any, x: Any) -> Any:
    """One head after another, for x [n, d_model]."""
    n = x.shape[0]
    latent, rotary = layer.key_value_down(x).split([6, 2], -1)
    expanded = layer.key_value_up(layer.key_value_norm(latent)).numpy().reshape(n, 3, 9)
    query = x if layer.query_down is None else layer.query_norm(layer.query_down(x))
    queries = layer.query(query).reshape((n, 3, 6))
    heads: list[Any] = []
    for head in range(3):
        turned = layer.rotary(queries[:, head, 4:]).numpy()
        scores = queries[:, head, :4].numpy() @ expanded[:, head, :4].T + turned @ layer.rotary(rotary).numpy().T
        scores = np.where(np.tri(n, dtype=bool), scores / np.sqrt(6.0), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ expanded[:, head, 4:])
    return layer.out(px.tensor(np.concatenate(heads, -1), kind=px.Float, device=x.device)).numpy()


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (NumPy(), {}),
        (NumPy(), {"q_rank": 7, "bias": True}),
        (Torch(), {"q_rank": 7, "bias": True}),
        pytest.param(Jax(), {"q_rank": 7, "bias": True}, marks=pytest.mark.full),
    ],
    ids=repr,
)
def test_it_is_the_formula_and_a_cache_changes_nothing(backend: Backend, options: dict[str, Any]) -> None:
    layer = layer_of(backend, **options)
    x = px.tensor(np.random.default_rng(0).normal(size=(2, 9, 8)), kind=px.Float, device=backend.device())
    expected = np.stack([by_hand(layer, row) for row in x])
    np.testing.assert_allclose(layer(x).numpy(), expected, atol=1e-5)
    cache, parts = layer.init_cache(2, 10), []
    assert cache.key.shape == (2, 1, 10, 2) and cache.value.shape == (2, 1, 10, 6)
    for start, stop in pairwise((0, 4, 5, 6, 9)):
        y, cache = layer(x[:, start:stop], cache=cache)
        parts.append(y.numpy())
    np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=1e-5)


def test_packed_weights_have_the_same_cache() -> None:
    layer = px.quantize(layer_of(NumPy()), "key_value_up.weight", "int8")
    x = px.tensor(np.random.default_rng(0).normal(size=(2, 3, 8)), kind=px.Float, device="numpy")
    _, cache = layer(x[:, :2], cache=layer.init_cache(2, 4))
    y, _ = layer(x[:, 2:], cache=cache)
    np.testing.assert_allclose(y.numpy(), layer(x).numpy()[:, 2:], atol=1e-6)


def test_sizes_out_of_range() -> None:
    with pytest.raises(ConfigError, match="all sizes must be at least 1"):
        px.nn.LatentAttention(8, 2, **{**SIZES, "kv_rank": 0})
    with pytest.raises(ConfigError, match=r"RotaryEncodingConfig\(2\)"):
        px.nn.LatentAttention(8, 2, **SIZES, rotary=px.nn.RotaryEncodingConfig(4))
