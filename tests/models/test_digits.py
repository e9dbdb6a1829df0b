from __future__ import annotations

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError
from phlox.models import DigitsConfig, DigitsRecipe, DigitsTraining

WAYS = [("numpy", False), ("jax", False), ("jax", True), ("torch", False)]


@pytest.mark.full
def test_the_engines_start_alike_and_stay_together() -> None:
    recipe = DigitsRecipe(epochs=2, seed=11)
    weights, masks, losses = [], [], []
    for device, compiled in WAYS:
        training = DigitsTraining(recipe, device, compile=compiled)
        model = training.learner.model
        weights.append({path: param.val().numpy().copy() for path, param in model.named_params()})
        ones = px.ones((4, model.head.weight.shape[0]), device=training.learner.device)
        with px.random.stream(1):
            masks.append(model.dropout(ones).numpy().copy())
        history = training.fit()
        losses.append([(report.train["loss"], report.validation["loss"]) for report in history])
    for other in weights[1:]:
        for path, weight in weights[0].items():
            np.testing.assert_array_equal(other[path], weight)
    assert 0.2 < (masks[0] == 0).mean() < 0.4
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0])
    np.testing.assert_allclose(losses, [losses[0]] * len(WAYS), atol=1e-3)
    assert losses[0][1][1] < losses[0][0][1] < 2.0


def test_a_training_leaves_the_ambient_stream_alone() -> None:
    px.random.seed(3)
    before = px.random.current().position
    DigitsTraining(DigitsRecipe(model=DigitsConfig(channels=(1, 1)), epochs=1, batch_size=512)).fit()
    assert px.random.current().position == before


@pytest.mark.parametrize("wrong", [
    {"channels": (0, 4)}, {"kernel": 2}, {"kernel": -1}, {"dropout": 1.0}, {"classes": 0}, {"size": (8, 6)},
])  # fmt: skip
def test_config_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DigitsConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [
    {"epochs": 0}, {"batch_size": 0}, {"lr": -0.1}, {"lr": float("nan")}, {"seed": -1},
    {"model": DigitsConfig(size=(16, 16))}, {"model": DigitsConfig(classes=9)},
])  # fmt: skip
def test_recipe_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DigitsRecipe(**wrong)  # type: ignore[arg-type]


def test_other_sizes_and_one_config_one_model() -> None:
    config = DigitsConfig(channels=(3, 5), kernel=5, classes=26, size=(16, 12))
    model = config.init()
    assert model(px.zeros((2, 1, 16, 12))).shape == (2, 26)
    assert model.num_params() == 3 * 25 + 3 + 5 * 3 * 25 + 5 + 5 * 4 * 3 * 26 + 26
    assert DigitsConfig.from_json(config.to_json()) == config
