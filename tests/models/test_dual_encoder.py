"""A model of images and texts learns which belong together; tests/interop/huggingface compares the results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, NumPy
from phlox.errors import ConfigError
from phlox.models import DualEncoderConfig, EncoderConfig, VisionEncoderConfig

SIZES: dict[str, Any] = {"n_layers": 1, "d_model": 16, "n_heads": 2, "dropout": 0.0, "init_std": 0.1}
TEXT = EncoderConfig(vocabulary=10, context=4, pooler=False, **SIZES)
IMAGE = VisionEncoderConfig(image_size=(4, 4), patch_size=(2, 2), channels=1, **SIZES)


@pytest.mark.parametrize("loss", ["softmax", pytest.param("sigmoid", marks=pytest.mark.full)])
def test_it_learns_pairs(loss: Any) -> None:
    config = DualEncoderConfig(TEXT, IMAGE, d_shared=8, loss=loss, logit_bias=-1.0, end_token=9)
    assert DualEncoderConfig.from_json(config.to_json()) == config
    model = config.init(Autodiff(NumPy())).init(0)
    images = px.tensor(np.random.default_rng(0).normal(size=(4, 1, 4, 4)), device="numpy")
    tokens = px.tensor([[2, 9, 0], [3, 9, 0], [4, 9, 0], [5, 9, 0]], device="numpy")
    optimizer, losses = optim.AdamWConfig(weight_decay=0.0).init(), []
    for _ in range(60 if loss == "softmax" else 200):
        value = model.loss(images, tokens)
        model = optimizer.step(3e-3, model, px.GradientsParams.from_grads(value.backward(), model))
        losses.append(value.item())
    assert losses[-1] < 0.3 * losses[0]
    assert model.valid()(images, tokens).numpy().argmax(1).tolist() == [0, 1, 2, 3]


def test_configs() -> None:
    with pytest.raises(ConfigError, match="without image_projection, d_shared must be .* 16, got 8"):
        DualEncoderConfig(TEXT, IMAGE, d_shared=8, image_projection=False)
