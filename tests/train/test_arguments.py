"""What is said of a training whose steps are not those of all rows: batch norm, and losses that compare rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.errors import RunError, RunWarning
from phlox.train import Learner, Loss

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
DATA = Loader((X, X), 8)


def net(**options: Any) -> Any:
    return nn.Sequential([nn.Linear(4, 6), nn.BatchNorm(6, **options), nn.Linear(6, 4)]).init(seed=0)


def frozen() -> Any:
    model = net()
    model.layers[1].training = False
    return model


def of_pytorch() -> Any:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    return nn.Sequential([px.interop.pytorch.wrap(inner), nn.Linear(4, 4).init(seed=0).to_device("torch")])


def step(models: Any, batch: Any) -> Any:
    model = models["student"] if isinstance(models, dict) else models
    return nn.mse_loss(model(batch[0]), batch[1])


MODELS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "plain": (net, "`layers.1`: batch norm"), "synchronized": (lambda: net(synchronized=True), "`layers.1`: batch"),
    "without statistics": (lambda: net(track_running_stats=False), "`layers.1`: batch"),
    "alone": (lambda: nn.BatchNorm(4).init(seed=0), "`model`: batch"),
    "of PyTorch": (of_pytorch, "`layers.0.1`: batch"),
    "five": (lambda: nn.Sequential([net() for _ in range(5)]),
             "`layers.0.layers.1`, `layers.1.layers.1`, `layers.2.layers.1` and 2 more: batch"),
    "a student": (lambda: {"student": net(), "teacher": net()}, "`student.layers.1`: batch"),
    "in inference": (frozen, None), "frozen": (lambda: net().freeze("layers.1"), None),
    "other norms": (lambda: nn.Sequential([nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4)]).init(seed=0), None),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_batch_norm_with_accumulation_is_told_once(name: str) -> None:
    make, expected = MODELS[name]
    model = make()
    optimizers = {"student": optim.SgdConfig()} if isinstance(model, dict) else optim.SgdConfig()
    one = Learner(model, optimizers, 0.01, step=step, accumulate=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one.lr_find(DATA, steps=10)
        assert not caught
        for _ in range(2):
            one.fit(DATA, steps=2, progress=False)
    if expected is None:
        assert not caught and not one.events
        return
    [found] = caught
    assert found.category is RunWarning and found.filename == __file__
    text = str(found.message)
    assert text.startswith(expected) and "accumulate=2 is not that of one batch of all the rows; take GroupNorm" in text
    assert one.events == [(0, text)]


def test_batch_norm_of_whole_batches_is_not_told() -> None:
    Learner(net(), optim.SgdConfig(), 0.01, step=step).fit(DATA, epochs=1, progress=False)


@pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])
def test_a_loss_that_compares_rows_says_so(engine: str) -> None:
    def contrastive(output: px.Tensor, target: px.Tensor) -> Loss:
        """Each row is to be more like its own target than like those of the others (InfoNCE)."""
        places = px.tensor(np.arange(output.shape[0]), device=output.device)
        losses = nn.cross_entropy_loss(output @ target.T, places, reduction="none")
        return Loss(losses.sum(), losses.size, separable=False)

    model = nn.Linear(4, 4).init(seed=0).to_device(engine)
    one = Learner(model, optim.SgdConfig(), 0.01, contrastive)
    one.fit(DATA, epochs=2, validation=DATA, progress=False)
    assert one.history[1].train["loss"] < one.history[0].train["loss"]
    parts = Learner(model, optim.SgdConfig(), 0.01, contrastive, accumulate=2)
    with pytest.raises(
        RunError, match=r"compares rows with each other .*; take a larger batch_size without accumulate="
    ):
        parts.fit(DATA, epochs=1, progress=False)
    assert parts.step == 0
