"""Batch norm: running statistics against PyTorch's, eager and compiled, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ShapeError

BACKENDS: list[Backend] = [NumPy(float="f64"), NumPy(), Jax(), Torch()]
SHAPES = [(5, 3), (4, 3, 6), (2, 3, 4, 2)]
TWINS: dict[int, Any] = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}


def batches(shape: tuple[int, ...], count: int = 100) -> Any:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) * (1 + step / 20) + step / 10 for step in range(count)]


def statistics(layer: Any) -> list[Any]:
    return [layer.running_mean.val().numpy(), layer.running_var.val().numpy()]


def theirs(shape: tuple[int, ...], count: int = 100, **options: Any) -> list[Any]:
    twin = TWINS[len(shape)](3, **options).double()
    for values in batches(shape, count):
        twin(torch.tensor(values))
    return [twin.running_mean.numpy(), twin.running_var.numpy()]


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_running_statistics_are_those_of_pytorch_over_a_hundred_steps(shape: Any, backend: Backend) -> None:
    device = Autodiff(backend).device()
    layer = nn.BatchNorm(3, device=device)
    for values in batches(shape):
        layer(px.tensor(values, device=device, kind=px.Float))
    rtol = 1e-12 if "f64" in repr(backend) else 1e-5
    for own, wanted in zip(statistics(layer), theirs(shape), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=rtol)
    assert layer.running_mean is not None and layer.running_mean.device == device


def test_running_statistics_in_a_compiled_step() -> None:
    device = Autodiff(Jax()).device()
    layer = nn.BatchNorm(3, device=device).init()
    step = px.compile(lambda layer, x: layer(x).square().sum())
    for values in batches((4, 3, 6)):
        step(layer, px.tensor(values, device=device, kind=px.Float))
    for own, wanted in zip(statistics(layer), theirs((4, 3, 6)), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.25, 1.0])
def test_momentum(momentum: float) -> None:
    device = Autodiff(NumPy(float="f64")).device()
    layer = nn.BatchNorm(3, momentum=momentum, device=device)
    for values in batches((5, 3), 4):
        layer(px.tensor(values, device=device, kind=px.Float))
    for own, wanted in zip(statistics(layer), theirs((5, 3), 4, momentum=momentum), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-12)


def test_inference_changes_nothing_and_needs_no_batch() -> None:
    layer = nn.BatchNorm(3).init()
    x = px.ones((1, 3)) * 2.0
    np.testing.assert_allclose(layer(x).numpy(), 2.0 / np.sqrt(1 + 1e-5), rtol=1e-6)
    np.testing.assert_array_equal(statistics(layer)[0], 0.0)


def test_the_mode_decides_where_it_is_set() -> None:
    """Training without a tape, and a tape without training; the views share no statistics with the model."""
    x = px.tensor(batches((5, 3), 1)[0], kind=px.Float)
    model = nn.BatchNorm(3).init()
    training = model.train(tape=False)
    assert abs(training(x).mean().item()) < 1e-6
    for own, wanted in zip(statistics(training), theirs((5, 3), 1), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5)
    frozen = model.valid(tape=True)
    taped = px.Tensor.from_inner(x).require_grad()
    assert taped.grad(frozen(taped).sum().backward()) is not None
    for untouched in (frozen, model):
        np.testing.assert_array_equal(statistics(untouched)[0], 0.0)


def test_a_tape_that_only_the_input_records_leaves_the_parameters_where_they_are() -> None:
    layer = nn.BatchNorm(3, device=NumPy())
    before = layer.init().structure()
    layer(px.tensor(batches((5, 3), 1)[0], device=Autodiff(NumPy()), kind=px.Float).require_grad())
    assert layer.running_var is not None and layer.running_var.backend == NumPy() and layer.structure() is before
    for own, wanted in zip(statistics(layer), theirs((5, 3), 1), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5)


def test_statistics_are_saved_and_not_trained() -> None:
    device = Autodiff(NumPy()).device()
    layer = nn.BatchNorm(3, device=device)
    y = layer(px.tensor(batches((5, 3), 1)[0], device=device, kind=px.Float))
    assert len(px.GradientsParams.from_grads(y.square().sum().backward(), layer)) == 2
    assert [path for path, _ in layer.named_params()] == ["gamma", "beta", "running_mean", "running_var"]
    assert layer.num_params(trained_only=True) == 6
    assert layer.running_mean is not None and not layer.running_mean.trained
    other = nn.BatchNorm(3).load_record(layer.into_record())
    np.testing.assert_array_equal(statistics(other)[1], statistics(layer)[1])
    assert [path for path, _ in nn.BatchNorm(3, affine=False, track_running_stats=False).named_params()] == []


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_one_value_a_channel_has_no_spread(backend: Backend) -> None:
    device = Autodiff(backend).device()
    layer = nn.BatchNorm(3, device=device)
    for shape in ((1, 3), (0, 3), (1, 3, 1, 1)):
        with pytest.raises(ShapeError, match=r"BatchNorm\(.*one value per channel.*larger batch"):
            layer(px.ones(shape, device=device))
    np.testing.assert_array_equal(statistics(layer)[0], 0.0)
    assert layer(px.ones((1, 3, 2), device=device)).shape == (1, 3, 2)


@pytest.mark.parametrize("backend", [NumPy(float="f16"), Jax(float="bf16"), Torch(float="bf16")], ids=repr)
def test_at_half_precision(backend: Backend) -> None:
    device = Autodiff(backend).device()
    layer = nn.BatchNorm(3, device=device)
    for values in batches((64, 3), 20):
        layer(px.tensor(values, device=device, kind=px.Float))
    for own, wanted in zip(statistics(layer), theirs((64, 3), 20), strict=True):
        np.testing.assert_allclose(own.astype(np.float64), wanted, rtol=0.05)


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_running_statistics_in_a_scan_and_under_checkpoint(backend: Backend) -> None:
    device = Autodiff(backend).device()
    data = px.tensor(np.stack(batches((4, 3), 20)), device=device, kind=px.Float)

    def loop(layer: nn.BatchNorm, data: px.Tensor) -> tuple[nn.BatchNorm, px.Tensor]:
        def turn(layer: nn.BatchNorm, x: px.Tensor) -> tuple[nn.BatchNorm, px.Tensor]:
            return layer, px.checkpoint(lambda layer, x: layer(x).square().sum())(layer, x)

        layer, losses = px.scan(turn, layer, data)
        losses.sum().backward()
        return layer, losses

    layer, _ = px.compile(loop)(nn.BatchNorm(3, device=device).init(), data)
    for own, wanted in zip(statistics(layer), theirs((4, 3), 20), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5)


def test_running_statistics_of_an_ensemble() -> None:
    device = Autodiff(NumPy(float="f64")).device()
    layers = [nn.BatchNorm(3, momentum=0.25, device=device).init() for _ in range(2)]
    together = px.stack_modules(layers)
    for values in batches((2, 5, 3), 4):
        x = px.tensor(values, device=device, kind=px.Float)
        px.vmap(lambda layer, x: layer(x))(together, x)
        for layer, part in zip(layers, x, strict=True):
            layer(part)
    for layer, one in zip(layers, px.unstack_modules(together), strict=True):
        for own, wanted in zip(statistics(one), statistics(layer), strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-12)
