"""FLOPs against formulas by hand, PyTorch's own counter, and XLA's estimate.

Serves: phlox/transform/abstract/counting.py, phlox/transform/summary/evaluate.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Torch(float="bf16"))]


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_a_linear_layer_by_hand(backend: Backend) -> None:
    model = nn.Linear(20, 30, device=backend)
    found = model.summary(px.TensorSpec((4, 5, 20)))
    rows = 4 * 5
    assert found.products == 2 * rows * 20 * 30
    assert found.flops == 2 * rows * 20 * 30 + rows * 30  # and the bias
    trained = model.summary(px.TensorSpec((4, 5, 20)), training=True)
    assert trained.products == 2 * found.products  # the gradient of the weight; nothing asks for that of the input


def test_a_layer_of_ones_own_by_hand() -> None:
    class Own(px.Module):
        def __init__(self) -> None:
            self.scale = px.Param(px.ones((7,)))

        def __call__(self, x: px.Tensor) -> px.Tensor:
            y = x * self.scale.val()  # 3 * 7
            y = y.reshape((7, 3)).T.exp() + 1.0  # moving elements is no operation; then twice 3 * 7
            return y.sum(axis=-1) @ px.ones((3, 2))  # a sum of 3 * 7 elements, and [1, 3] @ [3, 2]

    found = Own().summary(px.TensorSpec((3, 7)))
    assert (found.products, found.flops) == (2 * 3 * 2, 2 * 3 * 2 + 4 * 3 * 7)


class TorchAttention(torch.nn.Module):
    """Attention with its projections, as `nn.MultiHeadAttention`."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (torch.nn.Linear(d, d) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = (f(x).reshape(n, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = (q @ k.transpose(2, 3)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, t, d))


CASES: dict[str, tuple[Callable[[], px.Module], Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "mlp": (
        lambda: nn.Sequential([nn.Linear(64, 32), nn.Relu(), nn.Linear(32, 10)]),
        lambda: torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)),
        (8, 64),
    ),
    "cnn": (
        lambda: nn.Sequential(
            [
                nn.Conv2d(3, 8, 3, padding=1, stride=2),
                nn.Gelu(),
                nn.Conv2d(8, 16, 3, dilation=2),
                nn.BatchNorm(16),
                nn.ConvTranspose2d(16, 4, 2, stride=2),
                nn.Flatten(),
            ]
        ),
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1, stride=2),
            torch.nn.GELU(),
            torch.nn.Conv2d(8, 16, 3, dilation=2),
            torch.nn.BatchNorm2d(16),
            torch.nn.ConvTranspose2d(16, 4, 2, stride=2),
            torch.nn.Flatten(),
        ),
        (2, 3, 16, 18),
    ),
    "groups": (lambda: nn.Conv2d(8, 16, 3, groups=4), lambda: torch.nn.Conv2d(8, 16, 3, groups=4), (2, 8, 9, 8)),
    "attention": (lambda: nn.MultiHeadAttention(32, 4), lambda: TorchAttention(32, 4), (2, 9, 32)),
    "lstm": (lambda: nn.Lstm(6, 10), lambda: torch.nn.LSTM(6, 10, batch_first=True), (3, 7, 6)),
}


def by_torch(model: torch.nn.Module, shape: tuple[int, ...], *, training: bool) -> int:
    x = torch.zeros(shape, dtype=torch.float64)  # for which an LSTM is not one operation that it cannot count
    with FlopCounterMode(display=False) as counter:
        y: Any = model.double()(x)
        y = y[0] if isinstance(y, tuple) else y
        if training:
            y.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_that_pytorch_counts(name: str, training: bool) -> None:
    ours, theirs, shape = CASES[name]
    found = ours().summary(px.TensorSpec(shape), training=training)
    wanted = by_torch(theirs(), shape, training=training)
    if training and name == "lstm":
        wanted += 2 * shape[0] * 10 * 40  # our backward pass goes on to the first state, which is given as zeros
    if training and name == "groups":
        wanted = 2 * by_torch(theirs(), shape, training=False)  # of a gradient it forgets the groups
    assert found.products == wanted
    assert found.flops is not None and found.products is not None
    assert found.products <= found.flops < 2 * found.products


def test_all_operations_are_about_those_that_xla_counts() -> None:
    model = nn.Sequential([nn.Linear(64, 128), nn.Relu(), nn.LayerNorm(128), nn.Linear(128, 10)])
    model = model.init(seed=0, device="jax").to_device("jax")
    x = px.random.normal((32, 64), device="jax")
    compiled = jax.jit(lambda m, t: m(t)).lower(model, x).compile()
    cost: Any = compiled.cost_analysis()
    flops = (cost[0] if isinstance(cost, list) else cost)["flops"]
    found = model.summary(px.TensorSpec((32, 64)))
    assert found.flops == pytest.approx(flops, rel=0.05)


@pytest.mark.parametrize("training", [False, True])
def test_a_row_has_what_is_computed_in_it(training: bool) -> None:
    """The rows of a chain add up to the whole, and each is what its layer is alone, forward and backward."""
    layers = [nn.Linear(12, 20), nn.Gelu(), nn.LayerNorm(20), nn.Linear(20, 3)]
    found = nn.Sequential(layers).summary(px.TensorSpec((5, 12)), training=training)
    rows = [found.row(f"layers.{n}") for n in range(4)]
    assert sum(row.flops for row in rows) == found.flops == found.rows[0].flops
    assert rows[0].products == (4 if training else 2) * 5 * 12 * 20
    assert rows[3].products == (6 if training else 2) * 5 * 20 * 3
    assert rows[1].products == rows[2].products == 0 < rows[1].flops < rows[2].flops


def test_what_is_recomputed_is_counted_again() -> None:
    class Remembered(px.Module):
        def __init__(self, again: bool) -> None:
            self.inner = nn.Linear(10, 10)
            self.again = again

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return px.checkpoint(self.inner)(x) if self.again else self.inner(x)

    kept, again = (Remembered(a).summary(px.TensorSpec((4, 10)), training=True) for a in (False, True))
    assert kept.products == 2 * 2 * 4 * 10 * 10 and again.products == 3 * 2 * 4 * 10 * 10
    assert again.row("inner").calls == 1


def test_a_loop_and_a_batch_count_all_of_their_steps() -> None:
    class Deep(px.Module):
        def __init__(self) -> None:
            self.layers = px.stack_modules([nn.Linear(6, 6, device="numpy") for _ in range(5)])

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return px.scan(lambda x, layer: (layer(x), None), x, self.layers)[0]

    class Ensemble(Deep):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return px.vmap(lambda layer: layer(x))(self.layers)

    wanted = 5 * (2 * 4 * 6 * 6)
    assert Deep().summary(px.TensorSpec((4, 6))).products == wanted
    found = Ensemble().summary(px.TensorSpec((4, 6)))
    assert found.products == wanted and found.rows[0].outputs.shape == (5, 4, 6)
