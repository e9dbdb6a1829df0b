"""The cross-entropy of logits that are computed in pieces, against the one of all logits, and what it holds."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import IndexRangeError, RangeError, ShapeError

WIDE: list[Backend] = [NumPy(float="f64"), Torch(float="f64"), Jax()]
RNG = np.random.default_rng(0)
CLASSES, D = 11, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ignored, smoothed": {"ignore_index": 3, "label_smoothing": 0.2},
    "weighted sum": {"weight": np.linspace(0.5, 2.0, CLASSES), "reduction": "sum"},
    "weighted mean": {"weight": np.linspace(0.5, 2.0, CLASSES), "ignore_index": -100},
    "each": {"reduction": "none"},
}
X, WEIGHT, BIAS = RNG.normal(size=(2, 7, D)), RNG.normal(size=(D, CLASSES)), RNG.normal(size=CLASSES)
TARGETS = RNG.integers(0, CLASSES, (2, 7))


@pytest.mark.parametrize("backend", WIDE, ids=repr)
@pytest.mark.parametrize("case", OPTIONS)
def test_pieces_give_the_loss_and_gradients_of_all_logits(case: str, backend: Backend) -> None:
    device = Autodiff(backend).device()
    options: dict[str, Any] = {
        key: px.tensor(x, device=device) if key == "weight" else x for key, x in OPTIONS[case].items()
    }
    targets = px.tensor(np.where(RNG.random((2, 7)) < 0.2, options.get("ignore_index", 0), TARGETS), device=device)
    operands = [px.tensor(x, device=device, kind=px.Float) for x in (X, WEIGHT, BIAS)]
    weighing = px.tensor(RNG.normal(size=(2, 7)), device=device) if case == "each" else 1.0

    def whole(x: px.Tensor, w: px.Tensor, b: px.Tensor) -> px.Tensor:
        return (nn.cross_entropy_loss(x @ w + b, targets, **options) * weighing).sum()

    close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6} if isinstance(backend, Jax) else {"rtol": 1e-12, "atol": 1e-14}
    value, grads = px.value_and_grad(whole, argnums=(0, 1, 2))(*operands)
    for most in (1, 2 * 3 * CLASSES, 2 * 7 * CLASSES):  # pieces of one position, of three and one, and all

        def pieces(x: px.Tensor, w: px.Tensor, b: px.Tensor, most: int = most) -> px.Tensor:
            loss = nn.linear_cross_entropy_loss(
                x, lambda h: h @ w + b, targets, classes=CLASSES, most_logits=most, **options
            )
            return (loss * weighing).sum()

        run: Any = px.value_and_grad(pieces, argnums=(0, 1, 2))
        for call in (run, px.compile(run)) if isinstance(backend, Jax) else (run,):
            found, found_grads = call(*operands)
            np.testing.assert_allclose(found.numpy(), value.numpy(), **close)
            for a, b in zip(found_grads, grads, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), **close)


def test_in_a_compiled_step_on_pytorch_a_loop_does_what_all_logits_do() -> None:
    device = Autodiff(Torch()).device()
    targets = px.tensor(TARGETS, device=device)
    operands = [px.tensor(x, device=device, kind=px.Float) for x in (X, WEIGHT)]

    def loss(x: px.Tensor, w: px.Tensor, most: int) -> px.Tensor:
        return nn.linear_cross_entropy_loss(x, lambda h: h @ w, targets, classes=CLASSES, most_logits=most)

    value, grads = px.value_and_grad(lambda x, w: loss(x, w, 10**6), argnums=(0, 1))(*operands)
    run = px.compile(px.value_and_grad(lambda x, w: loss(x, w, 2 * 3 * CLASSES), argnums=(0, 1)))
    found, found_grads = run(*operands)
    np.testing.assert_allclose(found.numpy(), value.numpy(), rtol=1e-5)
    for a, b in zip(found_grads, grads, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def test_at_half_precision_the_mean_is_rounded_once() -> None:
    """A sum of 400 losses of about 180 is beyond the largest number of 16 bits."""
    device = Torch(float="f16").device()
    x = px.ones((400, 1), device=device)
    targets = px.zeros((400,), kind=px.Int, device=device)
    weight = px.tensor([[-90.0, 90.0]], device=device)
    loss = nn.linear_cross_entropy_loss(x, lambda h: h @ weight, targets, classes=2, most_logits=100, ignore_index=5)
    assert loss.item() == 180.0


def test_memory_at_a_vocabulary_of_fifty_thousand() -> None:
    device = Autodiff(NumPy()).device()
    classes, n = 50_000, 1024
    x, w = px.tensor(RNG.normal(size=(n, 4)), device=device), px.tensor(RNG.normal(size=(4, classes)), device=device)
    targets = px.tensor(RNG.integers(0, classes, n), device=device)
    peaks: list[int] = []
    for most in (n * classes, None):
        options = {} if most is None else {"most_logits": most}

        def loss(x: px.Tensor, w: px.Tensor, options: Any = options) -> px.Tensor:
            return nn.linear_cross_entropy_loss(x, lambda h: h @ w, targets, classes=classes, **options)

        tracemalloc.start()
        px.grad(loss, argnums=(0, 1))(x, w)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 0.15 * peaks[0]


def test_bad_input() -> None:
    x, head = px.zeros((2, 3, 4)), nn.Linear(4, 5)
    labels = px.zeros((2, 3), kind=px.Int)
    for call, error, words in (
        (
            lambda: nn.linear_cross_entropy_loss(x, head, labels[:, :2], classes=5),
            ShapeError,
            r"\(2, 3\), got \(2, 2\)",
        ),
        (lambda: nn.linear_cross_entropy_loss(x, head, labels, classes=0), RangeError, "at least 1, got 0"),
        (lambda: nn.linear_cross_entropy_loss(x, head, labels + 5, classes=5, most_logits=5), IndexRangeError, "5"),
    ):
        with pytest.raises(error, match=words):
            call()
