"""Texts whose prompts are processed in chunks, or whose beginnings are known: the same as without."""

from __future__ import annotations

from typing import Any

import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, KindError, RangeError
from phlox.models import GptConfig, PrefixCache
from phlox.models.generation import decoding

BACKENDS: list[Any] = [  # engine, compiled, rotary positions
    pytest.param(NumPy(), False, True, id="numpy"),
    pytest.param(NumPy(), False, False, id="numpy-learned"),
    pytest.param(Torch(), False, True, id="torch"),
    pytest.param(Jax(), True, False, id="jax"),
    pytest.param(Jax(), True, True, id="jax-rotary", marks=pytest.mark.full),
    pytest.param(Torch(), True, True, id="torch-compiled", marks=pytest.mark.full),
]
LONG = [[*range(1, 12)] * 2, [3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]]


def model_of(backend: Backend, **config: Any) -> Any:
    options: dict[str, Any] = {"vocabulary": 13, "context": 40, "n_layers": 2, "d_model": 16, "n_heads": 4}
    return GptConfig(**options | config, init_std=0.4).init(backend).init(seed=3)


@pytest.mark.parametrize(("backend", "compile", "rotary"), BACKENDS)
def test_prompts_in_chunks(backend: Backend, compile: bool, rotary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(backend, rotary=rotary, n_layers=1 if compile else 2)
    options: dict[str, Any] = {"temperature": 0.0, "compile": compile}
    expected = [row.tolist() for row in model.generate(LONG, 9, **options)]
    drawn = [row.tolist() for row in model.generate(LONG, 4, samples=2, seeds=range(6), compile=compile)]
    sizes: list[int] = []
    hidden = type(model).hidden

    def noted(self: Any, tokens: Any, **cache: Any) -> Any:
        sizes.append(tokens.shape[1])
        return hidden(self, tokens, **cache)

    monkeypatch.setattr(type(model), "hidden", noted)
    for chunk in (1, 5, 22) if not compile else (5,):
        sizes.clear()
        before = decoding._compiled_extend.traces
        found = model.generate(LONG, 9, prefill_chunk=chunk, **options)
        assert [row.tolist() for row in found] == expected
        assert max(sizes) <= chunk
        assert not compile or decoding._compiled_extend.traces - before == 1
    found = model.generate(LONG, 4, samples=2, seeds=range(6), compile=compile, prefill_chunk=5)
    assert [row.tolist() for row in found] == drawn
    if not compile:
        best = [row.tolist() for row in model.generate(LONG, 4, beams=3)]
        assert [row.tolist() for row in model.generate(LONG, 4, beams=3, prefill_chunk=7)] == best
        beyond = model.generate(LONG[:1], 30, **options)[0].tolist()
        assert model.generate(LONG[:1], 30, prefill_chunk=6, **options)[0].tolist() == beyond


@pytest.mark.parametrize(("backend", "compile", "rotary"), BACKENDS)
def test_beginnings_that_are_known(backend: Backend, compile: bool, rotary: bool) -> None:
    """A conversation that grows, in batches of different lengths, with prompts that share beginnings."""
    model = model_of(backend, rotary=rotary, n_layers=1 if compile else 2)
    options: dict[str, Any] = {"temperature": 0.0, "compile": compile, "stop": 3}
    cache = PrefixCache(model, block=3)
    reused: list[int] = []
    prompts = [list(prompt) for prompt in LONG]
    for turn in range(3):
        expected = [row.tolist() for row in model.generate(prompts, 5, **options)]
        found = [row.tolist() for row in model.generate(prompts, 5, prefix_cache=cache, **options)]
        assert found == expected
        reused.append(cache.reused_tokens)
        prompts = [[*row, turn + 4] for row in found]
    assert reused[0] == 0 and reused[1] > sum(len(prompt) for prompt in LONG) // 2 and reused[2] > 2 * reused[1]
    assert len(cache) % 3 == 0 and cache.bytes == len(cache) * model.config.n_layers * 2 * 16 * 4
    alone = model.generate([[*LONG[0][:8], 12, 12]], 4, **options)[0].tolist()
    before = cache.reused_tokens
    steps = model.stream(LONG[:1], 4, prefix_cache=cache, **options)
    next(steps)
    steps.close()
    assert cache.reused_tokens - before == 21
    found = model.generate([[*LONG[0][:8], 12, 12]], 4, prefix_cache=cache, prefill_chunk=2, **options)
    assert found[0].tolist() == alone and cache.reused_tokens - before == 27
    cache.clear()
    assert len(cache) == cache.bytes == 0


def test_least_recently_used_is_left_out() -> None:
    model = model_of(NumPy(), n_layers=1)
    per_block = 2 * 16 * 4 * 2
    cache = PrefixCache(model, max_bytes=4 * per_block, block=2)
    first, second = [1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12]

    def reuse(prompt: list[int]) -> int:
        before = cache.reused_tokens
        text = model.generate([prompt], 1, temperature=0.0, prefix_cache=cache)[0].tolist()
        assert text == model.generate([prompt], 1, temperature=0.0)[0].tolist()
        assert cache.bytes <= cache.max_bytes
        return cache.reused_tokens - before

    assert [reuse(first), reuse(first)] == [0, 6]
    assert reuse(second) == 0  # two blocks of it; the last two of the first text are left out
    assert reuse([1, 2, 3, 5, 5]) == 2
    assert reuse(second) == 4
    nothing = PrefixCache(model, max_bytes=0)
    assert model.generate([first], 1, temperature=0.0, prefix_cache=nothing)[0].shape == (8,) and len(nothing) == 0


def test_bad_arguments() -> None:
    model = model_of(NumPy(), n_layers=1)
    with pytest.raises(RangeError, match="PrefixCache: max_bytes must be at least zero"):
        PrefixCache(model, block=0)
    with pytest.raises(KindError, match="prefix_cache must be a PrefixCache, got 3"):
        model.generate([[1]], 2, prefix_cache=3)
    other = px.models.PrefixCache(model_of(NumPy(), n_layers=1))
    with pytest.raises(ConfigError, match="prefix_cache is for a model with other parameters; make one"):
        model.generate([[1]], 2, prefix_cache=other)
    with pytest.raises(RangeError, match="prefill_chunk must be at least one"):
        model.generate([[1]], 2, prefill_chunk=0)
