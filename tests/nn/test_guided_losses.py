"""Losses of teachers and preferences, against their formulas in plain NumPy and gradients of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.noted_means import noting_means

BACKENDS: list[Backend] = [NumPy(float="f64"), Jax(), Torch(float="f64")]
RNG = np.random.default_rng(0)
CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED = RNG.normal(size=(4, 6)) * 20 - 40
LOGITS, TEACHER = RNG.normal(size=(2, 3, 4, 7)) * 4
MASK = RNG.random((3, 4)) < 0.6


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_preferences(smoothing: float, backend: Backend) -> None:
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6} if isinstance(backend, Jax) else {"rtol": 1e-10, "atol": 1e-14}
    device = Autodiff(backend).device()
    beta = 0.3
    model = [px.tensor(x, device=device) for x in (CHOSEN, REJECTED)]
    reference = [px.tensor(x, device=backend.device()) for x in (REFERENCE_CHOSEN, REFERENCE_REJECTED)]
    with noting_means() as noted:
        result = nn.dpo_loss(*model, *reference, beta=beta, label_smoothing=smoothing)
    assert noted.of(result.loss)[0] == len(CHOSEN)

    rewards = beta * (CHOSEN - REFERENCE_CHOSEN), beta * (REJECTED - REFERENCE_REJECTED)
    margin = rewards[0] - rewards[1]
    losses = (1 - smoothing) * np.log1p(np.exp(-margin)) + smoothing * np.log1p(np.exp(margin))
    np.testing.assert_allclose(result.loss.numpy(), losses.mean(), **close)
    np.testing.assert_allclose(result.chosen_rewards.numpy(), rewards[0], **close)
    np.testing.assert_allclose(result.rejected_rewards.numpy(), rewards[1], **close)

    def loss(chosen: px.Tensor, rejected: px.Tensor) -> px.Tensor:
        result = nn.dpo_loss(
            chosen, rejected, *reference, beta=beta, label_smoothing=smoothing, reduction="none"
        )  # the rewards have no gradient
        return result.loss.sum() + result.chosen_rewards.sum()

    # The derivative of -log sigmoid(m) is sigmoid(m) - 1, and that of -log sigmoid(-m) is sigmoid(m).
    slope = beta * (1 / (1 + np.exp(-margin)) - (1 - smoothing))
    grads = px.grad(loss, argnums=(0, 1))(*model)
    for grad, expected in zip(grads, (slope, -slope), strict=True):
        np.testing.assert_allclose(grad.numpy(), expected, **close)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_distillation(mask: Any, backend: Backend) -> None:
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5} if isinstance(backend, Jax) else {"rtol": 1e-10, "atol": 1e-14}
    device = Autodiff(backend).device()
    logits, teacher = (px.tensor(x, device=device) for x in (LOGITS, TEACHER))
    options = {"temperature": 2.5, "mask": None if mask is None else px.tensor(mask, device=device)}
    with noting_means() as noted:
        loss = nn.distillation_loss(logits, teacher, **options)
    weight = noted.of(loss)[0]
    assert float(weight if isinstance(weight, float) else weight.item()) == (12 if mask is None else mask.sum())

    student = torch.tensor(LOGITS, requires_grad=True)
    p = F.softmax(torch.tensor(TEACHER) / 2.5, -1)
    losses = (p * (p.log() - F.log_softmax(student / 2.5, -1))).sum(-1) * 2.5**2
    expected = losses.mean() if mask is None else losses[torch.tensor(mask)].mean()
    expected.backward()
    np.testing.assert_allclose(loss.numpy(), expected.detach().numpy(), **close)
    grads = px.grad(lambda *x: nn.distillation_loss(*x, **options), argnums=(0, 1))(logits, teacher)
    assert student.grad is not None
    np.testing.assert_allclose(grads[0].numpy(), student.grad.numpy(), **close)
    assert not grads[1].numpy().any()  # the teacher is constant
    unreduced = nn.distillation_loss(logits, teacher, reduction="none", **options).numpy()
    np.testing.assert_allclose(unreduced, losses.detach().numpy() * (1.0 if mask is None else mask), **close)


def test_wrong_use() -> None:
    x, pairs = px.zeros((2, 3)), px.zeros((4,))
    for call, error, words in (
        (lambda: nn.distillation_loss(x, x[:, :2]), ShapeError, "teacher_logits of shape"),
        (lambda: nn.distillation_loss(x, x, temperature=0.0), RangeError, "temperature must be positive, got 0.0"),
        (lambda: nn.distillation_loss(x, x, mask=x > 0), ShapeError, r"shape of the losses, \(2,\), got \(2, 3\)"),
        (lambda: nn.distillation_loss(x, x, mask=pairs), KindError, "mask"),  # type: ignore[arg-type]
        (lambda: nn.dpo_loss(pairs, pairs, pairs, pairs[:1]), ShapeError, "reference_rejected"),
        (lambda: nn.dpo_loss(pairs, pairs, pairs, pairs, beta=0.0), RangeError, "beta must be positive"),
        (lambda: nn.dpo_loss(pairs, pairs, pairs, pairs, label_smoothing=0.5), RangeError, r"in \[0, 0.5\)"),
    ):
        with pytest.raises(error, match=words):
            call()
