"""Initializers and dropout: their distributions, and that they are the same on every backend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch

SHAPE, FANS = (200, 300), (200, 300)


def draw(initializer: Any, shape: tuple[int, ...] = SHAPE, fans: tuple[int, int] = FANS) -> np.ndarray[Any, Any]:
    with px.random.stream(7):
        return initializer(shape, fans, NumPy().device()).numpy().astype(np.float64).ravel()


UNIFORM = [
    (nn.Uniform(), -1.0, 1.0),
    (nn.Uniform(low=0.5, high=0.75), 0.5, 0.75),
    (nn.KaimingUniform(), -1 / math.sqrt(200), 1 / math.sqrt(200)),
    (nn.KaimingUniform(gain=math.sqrt(2.0), mode="fan_out"), -math.sqrt(6 / 300), math.sqrt(6 / 300)),
    (nn.XavierUniform(), -math.sqrt(6 / 500), math.sqrt(6 / 500)),
    (nn.XavierUniform(gain=2.0), -2 * math.sqrt(6 / 500), 2 * math.sqrt(6 / 500)),
]
NORMAL = [
    (nn.Normal(), 0.0, 1.0),
    (nn.Normal(mean=3.0, std=0.1), 3.0, 0.1),
    (nn.KaimingNormal(), 0.0, math.sqrt(2 / 200)),
    (nn.KaimingNormal(gain=1.0, mode="fan_out"), 0.0, math.sqrt(1 / 300)),
    (nn.XavierNormal(), 0.0, math.sqrt(2 / 500)),
    (nn.XavierNormal(gain=0.5), 0.0, 0.5 * math.sqrt(2 / 500)),
]


@pytest.mark.parametrize(("initializer", "low", "high"), UNIFORM, ids=[repr(case[0]) for case in UNIFORM])
def test_uniform_initializers(initializer: Any, low: float, high: float) -> None:
    values = draw(initializer)
    assert values.min() >= low * (1 + 1e-6 * np.sign(-low)) and values.max() <= high * (1 + 1e-6)
    assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("initializer", "mean", "std"), NORMAL, ids=[repr(case[0]) for case in NORMAL])
def test_normal_initializers(initializer: Any, mean: float, std: float) -> None:
    assert stats.kstest(draw(initializer), stats.norm(mean, std).cdf).pvalue > 1e-3


def test_constant_initializers() -> None:
    for initializer, value in ((nn.Zeros(), 0.0), (nn.Ones(), 1.0), (nn.Constant(value=0.3), np.float32(0.3))):
        assert (draw(initializer) == value).all()


def bounds(layer: torch.nn.Module) -> list[float]:
    return [float(p.detach().abs().max()) for p in layer.parameters()]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: nn.Linear(50, 400), lambda: torch.nn.Linear(50, 400)),
        (lambda: nn.Conv2d(8, 400, (3, 5), groups=4), lambda: torch.nn.Conv2d(8, 400, (3, 5), groups=4)),
    ],
)
def test_layers_begin_as_those_of_pytorch_do(ours: Any, theirs: Any) -> None:
    """Uniform within 1 / sqrt(fan in), the bias too."""
    with px.random.stream(1):
        own = [np.abs(p.val().numpy()).max() for p in ours().params()]
    np.testing.assert_allclose(own, bounds(theirs()), rtol=0.03)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_statistics(rate: float) -> None:
    layer, x = nn.Dropout(rate), px.ones((400, 500), device=Autodiff(NumPy()))
    with px.random.stream(3):
        y = layer(x).numpy()
    kept = y != 0
    assert abs(kept.mean() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / y.size)
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-3)
    assert abs(y.mean() - 1) < 0.02
    np.testing.assert_allclose(np.corrcoef(kept[:-1].ravel(), kept[1:].ravel())[0, 1], 0, atol=0.02)


def test_dropout_masks_are_bit_identical_and_follow_the_tape() -> None:
    masks = []
    for inner in (NumPy(), Jax(), Torch()):
        device = Autodiff(inner).device()
        x = px.ones((64, 33), device=device).require_grad()
        with px.random.stream(11):
            y = nn.Dropout(0.3)(x)
        gradient = x.grad(y.sum().backward())
        assert gradient is not None
        np.testing.assert_array_equal(gradient.numpy(), y.numpy())
        masks.append(y.numpy())
        plain = px.ones((4,), device=inner)
        assert nn.Dropout(0.3)(plain) is plain
        assert (nn.dropout(px.ones((200,), device=inner), 0.5).numpy() == 0).any()  # the function drops wherever
    np.testing.assert_array_equal(masks[0], masks[1])
    np.testing.assert_array_equal(masks[0], masks[2])


@pytest.mark.parametrize("inner", [NumPy(), Jax(), Torch()], ids=repr)
def test_dropout_of_nothing_and_of_everything(inner: Any) -> None:
    x = px.ones((8,), device=Autodiff(inner)).require_grad()
    with px.random.stream(0) as stream:
        assert nn.Dropout(0.0)(x) is x and stream.position == 0
    y = nn.Dropout(1.0)(x)
    assert y.tolist() == [0.0] * 8
    gradient = x.grad(y.sum().backward())
    assert gradient is not None and gradient.tolist() == [0.0] * 8


def test_dropout_where_mode_and_tape_do_not_go_together() -> None:
    x = px.ones((200,))
    assert (nn.Dropout(0.5).train(tape=False)(x).numpy() == 0).any()
    taped = px.Tensor.from_inner(x).require_grad()
    assert nn.Dropout(0.5).valid(tape=True)(taped) is taped
    with px.random.stream(1):
        masks = [nn.Dropout(0.5).train(tape=False)(x).tolist() for _ in range(2)]
    assert masks[0] != masks[1]
