"""What the variants of an encoder promise, besides the results, which tests/interop/huggingface compares.

Serves: phlox/models/encoder.py, phlox/models/blocks.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError
from phlox.models import EncoderClassifierConfig, EncoderConfig, EncoderMaskedLmConfig

SIZES: dict[str, Any] = {"vocabulary": 17, "context": 12, "n_layers": 3, "d_model": 12, "n_heads": 2, "dropout": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "counted": {"positions": "counted", "padding_index": 1},
    "distances": {"distance_bias": True, "segments": None},
    "rotary": {
        "positions": "rotary", "norm_place": "before", "first_norm": False, "final_norm": True, "gated": True,
        "window": 2, "window_layers": (1, 2), "local_rotary_base": 50.0, "norm_bias": False, "hidden_bias": False,
    },
    "narrow embedding": {"d_embedding": 6},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_is_not_seen_and_gradients_reach_everything(variant: str) -> None:
    config = EncoderConfig(**SIZES, **VARIANTS[variant], pooler=False)
    assert EncoderConfig.from_json(config.to_json()) == config
    model = EncoderMaskedLmConfig(config).init("numpy").init(0).train()
    padding = config.padding_index
    text, other = np.array([[5, 6, 7, 8, 9, 10, 0, 0]]), np.array([[5, 6, 7, 8, 9, 10, 3, 4]])
    text[text == 0] = padding
    mask = px.tensor((np.arange(8) < 6)[None].astype(np.int32), device="numpy")
    results = [model.valid()(px.tensor(tokens, device="numpy"), mask=mask).numpy() for tokens in (text, other)]
    np.testing.assert_allclose(results[0][:, :6], results[1][:, :6], atol=1e-5)
    loss = model.loss(px.tensor(text, device="numpy"), px.tensor(other, device="numpy"), mask=mask)
    grads = px.GradientsParams.from_grads(loss.backward(), model)
    for path, param in model.named_params():
        gradient = grads.get(param.id)
        assert gradient is not None and np.isfinite(gradient.numpy()).all(), path
        assert ".key.bias" in path or np.abs(gradient.numpy()).max() > 0.0, path


def test_a_text_of_padding_alone_stays_finite() -> None:
    for variant in ("plain", "distances"):
        model = EncoderConfig(**SIZES, **VARIANTS[variant]).init("numpy").init(0)
        tokens, mask = px.tensor([[0, 0], [3, 4]], device="numpy"), px.tensor([[0, 0], [1, 1]], device="numpy")
        assert np.isfinite(model(tokens, mask=mask).numpy()).all()


def test_counted_positions_skip_padding() -> None:
    model = EncoderConfig(**SIZES, **VARIANTS["counted"]).init("numpy").init(0)
    assert model.positions is not None and model.positions.shape == (14, 12)
    left, right = np.array([[1, 1, 5, 6, 7]]), np.array([[5, 6, 7, 1, 1]])
    results = [
        model(px.tensor(tokens, device="numpy"), mask=px.tensor((tokens != 1).astype(int), device="numpy")).numpy()
        for tokens in (left, right)
    ]
    np.testing.assert_allclose(results[0][:, 2:], results[1][:, :3], atol=1e-5)


def test_bad_input_and_configs() -> None:
    model = EncoderConfig(**SIZES, segments=None).init("numpy")
    tokens = px.tensor([[1, 2]], device="numpy")
    with pytest.raises(ConfigError, match="segments were given, and this model has none"):
        model(tokens, segments=tokens)
    wrongs: tuple[tuple[dict[str, Any], str], ...] = (
        ({"positions": "counted", "padding_index": None}, "needs a padding_index"),
        ({"positions": "rotary", "d_model": 6, "n_heads": 2}, "heads of even width, got 3"),
        ({"n_heads": 5}, "d_model=12 does not divide into n_heads=5"),
        ({"d_embedding": 0}, "d_embedding must be at least one"),
        ({"window": 0}, "window must be at least one"),
    )
    for wrong, message in wrongs:
        with pytest.raises(ConfigError, match=message):
            EncoderConfig(**(SIZES | wrong))
    with pytest.raises(ConfigError, match=r"Encoder: this model has no pooler; create it with EncoderConfig\(pooler"):
        EncoderConfig(**SIZES, pooler=False).init("numpy").pooled(px.ones((1, 2, 12)))
    with pytest.raises(ConfigError, match="classes must be at least one"):
        EncoderClassifierConfig(EncoderConfig(**SIZES), classes=0)
