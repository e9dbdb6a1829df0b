"""A cache of keys and values as a value: what is written where. tests/nn/test_multi_head_attention.py has the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.models import DecoderConfig, DynamicScaling
from phlox.nn.key_value_cache import NewKeyValueCache, OwnedKeyValueCache

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]

RNG = np.random.default_rng(0)


def floats(values: Any, device: Any) -> px.Tensor:
    return px.tensor(values, device=device).float()


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
@pytest.mark.parametrize("compile", [False, True])
def test_what_reaches_beyond_the_end_of_a_cache_is_dropped(compile: bool, backend: Backend) -> None:
    if compile and isinstance(backend, Torch):
        pytest.skip("its compiler takes long, and the operations are those of the others")
    x, values = RNG.normal(size=(1, 2, 4, 3)), RNG.normal(size=(1, 2, 3, 3))
    for count in (1, 3):
        for place in (0, 2, 3, 4, 5):
            expected = np.concatenate([x, np.zeros((1, 2, 8, 3))], 2)
            expected[:, :, place : place + count] = values[:, :, :count]
            start = nn.KeyValueCache(floats(x, backend), floats(x, backend), px.tensor(place, device=backend))
            new = floats(values[:, :, :count], backend)
            run: Any = px.compile(nn.KeyValueCache.append) if compile else nn.KeyValueCache.append
            found = run(start, new, new)
            np.testing.assert_allclose(found.value.numpy(), expected[:, :, :4], rtol=1e-6)
            np.testing.assert_allclose(start.value.numpy(), x, rtol=1e-6)  # which has not been written to


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
@pytest.mark.parametrize("compile", [False, True])
def test_each_row_may_have_its_own_number_of_tokens(compile: bool, backend: Backend) -> None:
    if compile and isinstance(backend, Torch):
        pytest.skip("its compiler takes long, and the operations are those of the others")
    x, positions = RNG.normal(size=(4, 2, 5, 3)), [0, 2, 4, 5]
    for count in (1, 3):
        values = RNG.normal(size=(4, 2, count, 3))
        expected = np.concatenate([x, np.zeros((4, 2, 3, 3))], 2)
        for row, position in enumerate(positions):
            expected[row, :, position : position + count] = values[row]
        cache = nn.KeyValueCache(floats(x, backend), floats(x, backend), px.tensor(positions, device=backend))
        new = floats(values, backend)
        run: Any = px.compile(nn.KeyValueCache.append) if compile else nn.KeyValueCache.append
        extended = run(cache, new, new)
        np.testing.assert_allclose(extended.value.numpy(), expected[:, :, :5], rtol=1e-6)
        np.testing.assert_allclose(cache.value.numpy(), x, rtol=1e-6)  # which has not been written to
        assert extended.position.tolist() == [position + count for position in positions]


MODELS: dict[str, dict[str, Any]] = {
    "rotary": {"n_kv_heads": 1},
    "learned": {"positions": "learned"},
    "window": {"window": 3, "window_layers": (1,)},
    "scaled by length": {"rotary_scaling": DynamicScaling(factor=2.0, context=4)},
    "scores": {"attention_cap": 5.0, "sinks": True},
}


EACH = pytest.mark.parametrize(("backend", "name"), [
    pytest.param(backend, name, marks=[pytest.mark.full] if isinstance(backend, Jax) and name != "window" else [])
    for backend in PLAIN
    for name in MODELS
], ids=str)  # fmt: skip


@EACH
def test_rows_with_their_own_positions_are_as_alone(name: str, backend: Backend) -> None:
    config = DecoderConfig(vocabulary=20, context=16, n_layers=2, d_model=8, n_heads=2, init_std=0.5, **MODELS[name])
    model = config.init(backend).init(1).valid()
    texts, new = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]], [[8, 9], [7, 9], [3, 2]]
    alone: list[Any] = []
    rows: list[Any] = []
    for text, tokens in zip(texts, new, strict=True):
        _, cache = model(px.tensor([text], device=backend), cache=model.init_cache(1, 12))
        rows.append(cache)
        logits, _ = model(px.tensor([tokens], device=backend), cache=cache)
        alone.append(logits.numpy()[0])
    positions = px.tensor([len(text) for text in texts], device=backend)

    def joined_rows(layer: int, part: int) -> px.Tensor:
        return px.concat([row[layer][part] for row in rows], 0)

    joined = [nn.KeyValueCache(joined_rows(layer, 0), joined_rows(layer, 1), positions) for layer in range(2)]
    for kind in (nn.KeyValueCache, OwnedKeyValueCache):
        if kind is OwnedKeyValueCache and isinstance(backend, Jax):
            continue
        caches: Any = tuple(kind(*layer) for layer in joined)
        logits, _ = model(px.tensor(new, device=backend), cache=caches)
        np.testing.assert_allclose(logits.numpy(), alone, rtol=2e-4, atol=2e-5)


@EACH
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_that_is_known_to_be_new_is_as_an_empty_one(padded: bool, name: str, backend: Backend) -> None:
    config = DecoderConfig(vocabulary=20, context=16, n_layers=2, d_model=8, n_heads=2, init_std=0.5, **MODELS[name])
    model = config.init(backend).init(1).valid()
    tokens, following = (px.tensor(RNG.integers(0, 20, shape), device=backend) for shape in ((2, 5), (2, 2)))
    start = px.tensor([0, 3], device=backend) if padded else None
    plain: Any = tuple(layer._replace(start=start) for layer in model.init_cache(2, 9))
    kinds = [plain] + [tuple(OwnedKeyValueCache(*layer) for layer in plain)] * (not isinstance(backend, Jax))
    logits, cache = model(tokens, cache=plain)
    after, _ = model(following, cache=cache)
    for caches in kinds:
        found, cache = model(tokens, cache=tuple(NewKeyValueCache(*x) if caches is plain else x for x in caches))
        np.testing.assert_allclose(found.numpy()[:, -2:], logits.numpy()[:, -2:], rtol=2e-4, atol=2e-5)
        assert [type(layer) for layer in cache] == [type(layer) for layer in caches]
        found, _ = model(following, cache=cache)
        np.testing.assert_allclose(found.numpy(), after.numpy(), rtol=2e-4, atol=2e-5)


def test_the_longest_row_decides_whether_tokens_fit() -> None:
    model = DecoderConfig(vocabulary=20, context=16, n_layers=1, d_model=8, n_heads=2).init("numpy")
    cache = tuple(layer._replace(position=px.tensor([0, 3], device="numpy")) for layer in model.init_cache(2, 4))
    with pytest.raises(px.errors.RangeError, match="2 more tokens after 3 exceed the capacity of 4"):
        model(px.tensor([[1, 2], [3, 4]], device="numpy"), cache=cache)
