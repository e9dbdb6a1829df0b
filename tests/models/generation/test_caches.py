"""Texts with small caches: the same through windows, and nearly the same with few bits.

Serves: phlox/models/generation/decoding.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import KindError, ShapeError
from phlox.models import DecoderConfig, PrefixCache
from phlox.models.generation import decoding

BACKENDS: list[Any] = [
    pytest.param(NumPy(), False, id="numpy"),
    pytest.param(Torch(), False, id="torch"),
    pytest.param(Jax(), True, id="jax"),
    pytest.param(Torch(), True, id="torch-compiled", marks=pytest.mark.full),
]
PROMPTS = [[*range(1, 12)] * 2, [3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]]


def model_of(backend: Backend, **config: Any) -> Any:
    options: dict[str, Any] = {
        "vocabulary": 13, "context": 40, "n_layers": 2, "d_model": 32, "n_heads": 4, "window": 6, "window_layers": (0,),
        "init_std": 0.4,
    }  # fmt: skip
    return DecoderConfig(**options | config).init(backend).init(seed=3)


@pytest.mark.parametrize(("backend", "compile"), BACKENDS)
def test_windows(backend: Backend, compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(backend)
    options: dict[str, Any] = {"temperature": 0.0, "compile": compile}
    kinds: list[list[tuple[str, int]]] = []
    new_cache = decoding.new_cache

    def noted(*arguments: Any) -> Any:
        cache = new_cache(*arguments)
        kinds.append([(type(layer).__name__.strip("_"), layer.key.shape[2]) for layer in cache])
        return cache

    monkeypatch.setattr(decoding, "new_cache", noted)
    expected = [row.tolist() for row in model.generate(PROMPTS, 14, cache="full", **options)]
    assert [row.tolist() for row in model.generate(PROMPTS, 14, **options)] == expected
    size = 40 if compile else 36
    assert [[capacity for _, capacity in layers] for layers in kinds] == [[size, size], [6, size]]
    assert all("Window" in layers[0][0] for layers in kinds[1:])
    chunked = model.generate(PROMPTS, 14, prefill_chunk=4, **options)
    assert [row.tolist() for row in chunked] == expected
    if not compile:
        beyond = [row.tolist() for row in model.generate(PROMPTS[:2], 30, cache="full", **options)]
        assert [row.tolist() for row in model.generate(PROMPTS[:2], 30, **options)] == beyond
        best = [row.tolist() for row in model.generate(PROMPTS, 6, beams=3, cache="full")]
        assert [row.tolist() for row in model.generate(PROMPTS, 6, beams=3)] == best
        known = PrefixCache(model, block=2)
        for _ in range(2):
            assert [row.tolist() for row in model.generate(PROMPTS, 14, prefix_cache=known, **options)] == expected
        assert known.reused_tokens > 20


@pytest.mark.parametrize(("backend", "compile"), BACKENDS)
def test_few_bits(backend: Backend, compile: bool) -> None:
    """Log-probabilities move little; a cache of known beginnings holds the same bits."""
    model = model_of(backend, window=None, init_std=0.2)
    options: dict[str, Any] = {"temperature": 0.0, "compile": compile, "logprobs": True}
    _, exact = model.generate(PROMPTS, 1, **options)
    for kind, most in (("int8", 0.02), ("int4", 0.3)) if not compile else (("int4", 0.3),):
        texts, logprobs = model.generate(PROMPTS, 1, cache=kind, **options)
        change = max(np.abs(a.numpy() - b.numpy()).max() for a, b in zip(exact, logprobs, strict=True))
        assert 0 < change < most
        if not compile:
            texts = model.generate(PROMPTS, 9, cache=kind, temperature=0.0)
            known = PrefixCache(model, block=2)
            for _ in range(2):
                found = model.generate(PROMPTS, 9, cache=kind, temperature=0.0, prefix_cache=known)
                assert [row.tolist() for row in found] == [row.tolist() for row in texts]
            assert known.reused_tokens > 20


def test_bad_caches() -> None:
    model = model_of(NumPy(), d_model=24)
    with pytest.raises(KindError, match="cache must be 'auto', 'full', 'int8' or 'int4', got 'int2'"):
        model.generate([[1]], 2, cache="int2")
    with pytest.raises(ShapeError, match="heads must have a multiple of 4 elements, got 6"):
        model.generate([[1]], 2, cache="int8")
