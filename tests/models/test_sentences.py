"""Pooling: against formulas in NumPy; a sentence encoder does not see padding. tests/interop has the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import KindError, ShapeError
from phlox.models import EncoderConfig, LlamaConfig, SentenceEncoderConfig, SentenceLayerConfig, pool

HIDDEN = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
SIZES: dict[str, Any] = {"vocabulary": 11, "context": 8, "n_layers": 2, "d_model": 12, "n_heads": 2}


def expected(rows: Any, pooling: str) -> Any:
    n, number = len(rows), np.arange(1, len(rows) + 1)[:, None]
    return {
        "mean": lambda: rows.mean(0),
        "first": lambda: rows[0],
        "last": lambda: rows[-1],
        "max": lambda: rows.max(0),
        "root_mean": lambda: rows.sum(0) / np.sqrt(n),
        "weighted_mean": lambda: (rows * number).sum(0) / number.sum(),
    }[pooling]()


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max", "root_mean", "weighted_mean"])
def test_poolings_are_their_formulas(pooling: Any, backend: str) -> None:
    hidden = px.tensor(np.where(MASK[..., None] == 1, HIDDEN, np.inf), device=backend)  # padding may be anything
    mask = px.tensor(MASK, device=backend)
    for is_token in (mask, mask > 0):
        y = pool(hidden, is_token, pooling).numpy()
        for text in range(3):
            np.testing.assert_allclose(y[text], expected(HIDDEN[text][MASK[text] == 1], pooling), rtol=1e-5, atol=1e-6)
        assert np.all(y[3] == (-np.inf if pooling == "max" else 0.0))
    whole = pool(px.tensor(HIDDEN, device=backend), pooling=pooling).numpy()
    np.testing.assert_allclose(whole[3], expected(HIDDEN[3], pooling), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "config", [EncoderConfig(**SIZES, pooler=False), LlamaConfig(**SIZES)], ids=["encoder", "causal"]
)
def test_padding_changes_nothing(config: Any) -> None:
    layers = (SentenceLayerConfig(24, 5), SentenceLayerConfig(5, 4, bias=False, activation=None))
    whole = SentenceEncoderConfig(config, pooling=("last", "mean"), layers=layers)
    assert SentenceEncoderConfig.from_json(whole.to_json()) == whole
    model = whole.init("numpy").init(0)
    alone = model(px.tensor([[3, 4, 5]], device="numpy")).numpy()
    np.testing.assert_allclose(np.linalg.norm(alone), 1.0, rtol=1e-5)
    right = model(px.tensor([[3, 4, 5, 9, 9]]), mask=px.tensor([[1, 1, 1, 0, 0]])).numpy()
    np.testing.assert_allclose(right, alone, atol=1e-6)
    if isinstance(config, LlamaConfig):  # which counts positions from the first token
        left = model(px.tensor([[9, 9, 3, 4, 5]]), mask=px.tensor([[0, 0, 1, 1, 1]])).numpy()
        np.testing.assert_allclose(left, alone, atol=1e-6)
    plain = whole.replace(normalized=False, layers=()).init("numpy").init(0)
    assert plain(px.tensor([[3, 4, 5]])).shape == (1, 24)


def test_a_compiled_step_trains_it() -> None:
    model = SentenceEncoderConfig(EncoderConfig(**SIZES, pooler=False, dropout=0.0)).init("jax").init(0).train()
    tokens, mask = px.tensor([[3, 4, 5], [6, 7, 0]], device="jax"), px.tensor([[1, 1, 1], [1, 1, 0]], device="jax")

    @px.compile
    def gradients(model: Any, tokens: Any, mask: Any) -> Any:
        vectors = model(tokens, mask=mask)
        return px.GradientsParams.from_grads((vectors[0] * vectors[1]).sum().backward(), model)

    grads = gradients(model, tokens, mask)
    norms = [np.abs(grads.get(param.id).numpy()).max() for _, param in model.named_params()]
    assert np.isfinite(norms).all() and sum(norm > 0 for norm in norms) > len(norms) // 2


def test_bad_input() -> None:
    hidden = px.tensor(HIDDEN)
    with pytest.raises(ShapeError, match=r"mask must be \[batch, n\], here \(4, 5\), got shape \(4, 4\)"):
        pool(hidden, px.tensor(MASK[:, :4]))
    with pytest.raises(KindError, match="pool: mask must be a Bool or Int tensor, .* got Float"):
        pool(hidden, px.ones((4, 5)))
