"""Clipping and schedules against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import OptimizerError, RecordError
from phlox.module import ParamId
from tests.optim.problem import RATES, STEPS, arrays, gradients, initial, run

Clip = Callable[[list[torch.Tensor]], None]


def torch_run(clip: Clip) -> list[Any]:
    weights = [torch.tensor(value, dtype=torch.float64) for value in initial()]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    for number in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATES[number]
        for weight, grad in zip(weights, gradients(weights, number), strict=True):
            weight.grad = grad
        clip(weights)
        optimizer.step()
    return [weight.numpy() for weight in weights]


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
    expected = torch_run(clip)
    got = arrays(run(optim.SgdConfig().init(grad_clipping=clipping), NumPy(float="f64")))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(
            a, b, rtol=1e-9 if kind == "value" else 1e-3, atol=1e-10 if kind == "value" else 1e-6
        )
    zeros = optim.GradientsParams({ParamId("a"): px.zeros((3,))})
    assert [grad.tolist() for _, grad in clipping.of_all(zeros).items()] == [[0.0, 0.0, 0.0]]


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["value", "norm", "global_norm"])
@pytest.mark.parametrize("backend", [NumPy(), Torch(), Jax(), NumPy(float="f16")], ids=repr)
def test_gradients_of_several_models_are_clipped_together(kind: str, backend: Backend) -> None:
    rng = np.random.default_rng(0)
    host = {name: {f"{name}{n}": rng.normal(size=(n + 1, 3)) for n in range(2)} for name in ("one", "other")}
    grads = {
        name: optim.GradientsParams(
            {ParamId(id): px.tensor(x, kind=px.Float, device=backend.device()) for id, x in of_one.items()}
        )
        for name, of_one in host.items()
    }
    got = getattr(optim.GradientClipping, kind)(np.float64(0.5)).of_all_together(grads)
    every = np.sqrt(sum((x**2).sum() for of_one in host.values() for x in of_one.values()))
    for name, of_one in host.items():
        for id, x in of_one.items():
            factor = 0.5 / (every if kind == "global_norm" else np.sqrt((x**2).sum()))
            want = np.clip(x, -0.5, 0.5) if kind == "value" else x * factor
            np.testing.assert_allclose(got[name].get(ParamId(id)).numpy(), want, rtol=2e-3)


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


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_bad_limits(limit: float) -> None:
    with pytest.raises(OptimizerError, match="greater than zero"):
        optim.GradientClipping.norm(limit)
