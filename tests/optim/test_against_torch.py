"""Optimizers, clipping and schedules against PyTorch's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, OptimizerError, RecordError

STEPS = 60
CASES: list[tuple[str, Any, Any]] = [
    ("sgd", optim.SgdConfig(), lambda p: torch.optim.SGD(p, lr=1.0)),
    ("decay", optim.SgdConfig(weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1)),
    ("momentum", optim.SgdConfig(momentum=0.9), lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)),
    (
        "dampening",
        optim.SgdConfig(momentum=0.9, dampening=0.3, weight_decay=0.05),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, dampening=0.3, weight_decay=0.05),
    ),
    (
        "nesterov",
        optim.SgdConfig(momentum=0.8, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.8, nesterov=True),
    ),
    ("adam", optim.AdamConfig(), lambda p: torch.optim.Adam(p, lr=1.0)),
    (
        "adam, decay",
        optim.AdamConfig(beta_1=0.8, beta_2=0.99, epsilon=1e-6, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    ),
    ("adamw", optim.AdamWConfig(), lambda p: torch.optim.AdamW(p, lr=1.0)),
    ("adamw, decay", optim.AdamWConfig(weight_decay=0.3), lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.3)),
]
BACKENDS: list[tuple[Backend, bool]] = [
    (NumPy(float="f64"), False), (Torch(float="f64"), False), (NumPy(), False), (Jax(), False), (Torch(), False),
    (Jax(), True),
]  # fmt: skip


class Weights(px.Module):
    def __init__(self, values: list[np.ndarray[Any, Any]], device: Any) -> None:
        self.weights = [px.Param(px.tensor(value, device=device, kind=px.Float)) for value in values]


def initial() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in ((4, 3), (3,), ())]


def rate(number: int) -> float:
    return 0.02 * (1 + math.cos(number))


def objective(weights: Any, number: int) -> Any:
    """Works on torch's tensors and on ours: not convex, never still."""
    a, b, c = weights
    wells, bilinear = ((a * a - 1.0) * (a * a - 1.0)).sum(), (a * (0.3 * (number % 7))).sum() - b.sum() * c
    return wells * 0.1 + bilinear * 0.05 + (b * b * c * c).sum()


def torch_run(make: Any, clip: Any = None) -> list[np.ndarray[Any, Any]]:
    weights = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in initial()]
    optimizer = make(weights)
    for number in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate(number)
        optimizer.zero_grad()
        objective(weights, number).backward()
        if clip is not None:
            clip(weights)
        optimizer.step()
    return [weight.detach().numpy() for weight in weights]


def run(optimizer: optim.Optimizer, backend: Backend, compiled: bool = False) -> list[np.ndarray[Any, Any]]:
    def step(model: Weights, optimizer: optim.Optimizer, lr: float, number: Any) -> Weights:
        loss = objective([param.val() for param in model.weights], number)
        return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model))

    step = px.compile(step) if compiled else step
    model = Weights(initial(), Autodiff(backend).device())
    for number in range(STEPS):
        model = step(model, optimizer, rate(number), number)
    return [param.val().numpy() for param in model.params()]


@pytest.mark.parametrize(("backend", "compiled"), BACKENDS, ids=lambda value: repr(value))
@pytest.mark.parametrize(("name", "config", "make"), CASES, ids=[case[0] for case in CASES])
def test_optimizers(name: str, config: Any, make: Any, backend: Backend, compiled: bool) -> None:
    wide = "f64" in repr(backend)
    for got, expected in zip(run(config.init(), backend, compiled), torch_run(make), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9 if wide else 2e-3, atol=1e-10 if wide else 2e-4)


@pytest.mark.parametrize("limit", [0.01, 0.1, 100.0])
@pytest.mark.parametrize("kind", ["value", "norm"])
def test_clipping(kind: str, limit: float) -> None:
    def clip(weights: list[torch.Tensor]) -> None:
        for weight in weights:
            if kind == "value":
                torch.nn.utils.clip_grad_value_([weight], limit)
            else:  # torch adds 1e-6 to the norm
                torch.nn.utils.clip_grad_norm_([weight], limit)

    clipping = getattr(optim.GradientClipping, kind)(limit)
    expected = torch_run(lambda p: torch.optim.SGD(p, lr=1.0), clip)
    got = run(optim.SgdConfig().init(grad_clipping=clipping), NumPy(float="f64"))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(
            a, b, rtol=1e-9 if kind == "value" else 1e-3, atol=1e-10 if kind == "value" else 1e-6
        )
    zero = clipping(px.zeros((3,)))
    assert zero.tolist() == [0.0, 0.0, 0.0]


def test_the_cosine_schedule() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40, eta_min=0.01)
    schedule = optim.CosineAnnealingLr(0.3, num_iters=40, min_lr=0.01)
    for _ in range(41):
        assert schedule.step() == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()
    assert schedule.step() == pytest.approx(0.01) and optim.ConstantLr(0.5).step() == 0.5


def test_a_schedule_goes_on_where_its_record_stands() -> None:
    one, other = optim.CosineAnnealingLr(1.0, num_iters=10), optim.CosineAnnealingLr(1.0, num_iters=10)
    for _ in range(3):
        one.step()
    other.load_record(one.into_record())
    assert [other.step() for _ in range(3)] == [one.step() for _ in range(3)]
    for bad in (nn.Linear(1, 1).into_record(), px.record.Record({"taken": -1}), px.record.Record({"taken": True})):
        with pytest.raises(RecordError, match="taken"):
            other.load_record(bad)
    with pytest.raises(OptimizerError, match="num_iters"):
        optim.CosineAnnealingLr(1.0, num_iters=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.AdamConfig(beta_1=1.0), lambda: optim.AdamWConfig(beta_2=-0.1),
        lambda: optim.AdamConfig(epsilon=-1.0), lambda: optim.SgdConfig(momentum=-0.5),
        lambda: optim.SgdConfig(nesterov=True), lambda: optim.SgdConfig(weight_decay=-1.0),
    ],
)  # fmt: skip
def test_bad_settings(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_bad_limits(limit: float) -> None:
    with pytest.raises(OptimizerError, match="greater than zero"):
        optim.GradientClipping.norm(limit)
