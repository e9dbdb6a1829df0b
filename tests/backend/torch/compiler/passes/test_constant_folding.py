"""Inference with convolutions on PyTorch: weights are folded and packed once, and the values are the eager ones.

Serves: phlox/backend/torch/compiler/passes/weight_cache.py
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, NumPy, Torch
from phlox.backend.torch.compiler import pipeline
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.passes.constant_folding import FoldedConstants
from phlox.backend.torch.ops.conv import channels_last
from tests.backend.torch.lacking import lacking

EXACT = NumPy(float="f64")
Made = list["FoldedConstants | None"]


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")  # none is made in these tests, but packing belongs to it


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """What became of every program recorded in this test."""
    found: Made = []
    original: Callable[..., Any] = pipeline.fold_constants

    def folded(*arguments: Any) -> Any:
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(pipeline, "fold_constants", folded)
    return found


class Residual(px.Module):
    """Convolutions with batch norms, whose sum is clipped."""

    def __init__(self, device: Any, **options: Any) -> None:
        self.main = nn.Conv2d(4, 8, 3, device=device, **options)
        self.main_norm = nn.BatchNorm(8, device=device)
        self.short = nn.Conv2d(4, 8, 3, device=device, **options)
        self.short_norm = nn.BatchNorm(8, device=device)
        self.last = nn.Conv2d(8, 8, 1, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        x = px.functional.relu(self.main_norm(self.main(x)) + self.short_norm(self.short(x)))
        return px.functional.relu(self.last(x) + x)


def network(backend: Backend = Torch(), **options: Any) -> Residual:  # noqa: B008
    """The same weights and running statistics everywhere."""
    model = Residual(backend.device(), **options).init(seed=3)
    rng = np.random.default_rng(4)
    for param in model.params():
        values = param.val().numpy() + rng.uniform(0.1, 0.5, param.shape)
        param.set(px.tensor(values.astype(np.float32), device=backend.device()))
    return model


def images(backend: Backend = Torch(), channels: int = 4) -> px.Tensor:  # noqa: B008
    values = np.random.default_rng(5).standard_normal((3, channels, 9, 7)).astype(np.float32)
    return px.tensor(values, device=backend.device())


def forward(model: Any, x: px.Tensor) -> px.Tensor:
    return model(x)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-bias": {"bias": False, "padding": 1},
    "strided": {"stride": 2, "padding": 1},
    "strides": {"stride": (1, 3), "padding": (2, 0)},
    "dilated": {"dilation": 2, "padding": 2},
    "groups": {"groups": 2, "bias": False},
    "depthwise": {"groups": 4},
    "uneven": {"padding": ((0, 2), (1, 0))},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_values_are_those_of_numpy_in_f64(options: dict[str, Any], made: Made) -> None:
    predict, model = px.compile(forward), network(**options)
    expected = network(EXACT, **options)(images(EXACT)).numpy()
    for _ in range(2):
        np.testing.assert_allclose(predict(model, images()).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert [type(one) for one in made] == [FoldedConstants]


def test_a_convolution_that_several_read_stays_apart(made: Made) -> None:
    def both(conv: nn.Conv2d, x: px.Tensor) -> tuple[px.Tensor, px.Tensor]:
        y = conv(x)
        return y, px.functional.relu(y)

    device = Torch().device()
    conv = nn.Conv2d(4, 8, 3, device=device).init(seed=0)
    y, clipped = px.compile(both)(conv, images())
    np.testing.assert_allclose(y.numpy(), conv(images()).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(clipped.numpy(), np.maximum(y.numpy(), 0.0))
    assert y.numpy().min() < 0.0 and type(made[0]) is FoldedConstants


def test_nan_stays_nan(made: Made) -> None:
    x = images().numpy().copy()
    x[0, 0, 4, 4] = np.nan
    broken = px.tensor(x, device=Torch().device())
    expected = network()(broken).numpy()
    found = px.compile(forward)(network(), broken).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(found).any() and type(made[0]) is FoldedConstants


def test_other_weights_are_seen(made: Made) -> None:
    predict, model, x = px.compile(forward), network(), images()
    before = predict(model, x).numpy()
    model.main_norm.gamma.set(model.main_norm.gamma.val() * 3.0)  # pyright: ignore[reportOptionalMemberAccess]
    np.testing.assert_allclose(predict(model, x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    model.last.weight.val().primitive.mul_(2.0)  # where PyTorch's users write
    after = predict(model, x).numpy()
    np.testing.assert_allclose(after, model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert abs(after - before).max() > 0.1 and len(made) == 1
    other = network(padding=0)
    other.main.weight.set(other.main.weight.val() * -1.0)
    np.testing.assert_allclose(predict(other, x).numpy(), other(x).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(predict(model, x).numpy(), after)


def test_the_weights_are_packed_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    predict, model = px.compile(forward), network()
    predict(model, images())
    (program,) = made
    assert program is not None
    make: Callable[..., Any] = program._first._make
    calls: list[int] = []
    monkeypatch.setattr(program._first, "_make", lambda *weights: (calls.append(1), make(*weights))[1])
    for _ in range(3):
        predict(model, images())
    assert not calls
    model.last.weight.set(model.last.weight.val() + 0.0)
    predict(model, images())
    predict(model, images())
    assert len(calls) == 1


def test_weights_that_are_gone_are_not_kept() -> None:
    predict, model = px.compile(forward), network()
    predict(model, images())
    old = weakref.ref(model.main.weight.val().primitive)
    del model
    gc.collect()
    assert old() is None


def test_weights_of_inference_mode_may_be_written_to(made: Made) -> None:
    with torch.inference_mode():
        model, x = network(), images()
    predict = px.compile(forward)
    before = predict(model, x).numpy()
    with torch.inference_mode():
        model.last.weight.val().primitive.mul_(2.0)
        expected = model(x).numpy()
    np.testing.assert_allclose(predict(model, x).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert abs(expected - before).max() > 0.1 and type(made[0]) is FoldedConstants


def test_a_model_after_training_steps_predicts_with_its_new_weights(made: Made) -> None:
    device = Autodiff(Torch()).device()
    model, optimizer, predict = network(Autodiff(Torch())), optim.SgdConfig().init(), px.compile(forward)
    for _ in range(2):
        valid = model.valid()
        np.testing.assert_allclose(predict(valid, images()).numpy(), valid(images()).numpy(), rtol=1e-4, atol=1e-5)
        grads = model(px.tensor(images().numpy(), device=device)).square().mean().backward()
        model = optimizer.step(0.1, model, optim.GradientsParams.from_grads(grads, model))
    assert [type(one) for one in made] == [FoldedConstants]


# --- what stays one program


def wavy(model: Any, x: px.Tensor) -> px.Tensor:
    for _ in range(8):
        x = x.sin()
    return model(x)


def slope(model: Any, x: px.Tensor) -> px.Tensor:
    return px.grad(lambda x: model(x).sum())(x)


REASONS: dict[str, tuple[Backend, Callable[..., Any]]] = {
    "much besides": (Torch(), wavy),
    "derivatives": (Torch(), slope),
    "f64": (Torch(float="f64"), forward),
    "bf16": (Torch(float="bf16"), forward),
    "weights given back": (Torch(), lambda model, x: (model(x), model.main.weight.val() * 2.0)),
    "no weights": (Torch(), lambda x, w: px.functional.conv2d(x, w)),
}


@pytest.mark.parametrize(("backend", "function"), REASONS.values(), ids=REASONS)
def test_others_are_compiled_whole(
    backend: Backend, function: Callable[..., Any], made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_recorded(graph: Any, _: Any) -> Any:
        return graph.forward

    monkeypatch.setattr(pipeline, "compile_graph", as_recorded)  # the compiler is tested elsewhere
    x = images(backend)
    given = (
        (x, px.ones((2, 4, 3, 3), device=backend)) if "w" in function.__code__.co_varnames else (network(backend), x)
    )
    px.compile(function)(*given)
    assert made == [None]


@pytest.mark.parametrize(
    "kernel",
    ["_convolution_pointwise.default", "_convolution_pointwise.binary", "_reorder_convolution_weight.default"],
)
def test_without_the_kernels_nothing_is_folded(kernel: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_recorded(graph: Any, _: Any) -> Any:
        return graph.forward

    monkeypatch.setattr(pipeline, "compile_graph", as_recorded)
    with lacking(f"torch.ops.mkldnn.{kernel}"):
        np.testing.assert_allclose(
            px.compile(forward)(network(), images()).numpy(), network()(images()).numpy(), rtol=1e-6, atol=1e-6
        )
    assert made == [None]


def test_without_code_the_graph_runs_as_recorded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    np.testing.assert_allclose(
        px.compile(forward)(network(), images()).numpy(), network()(images()).numpy(), rtol=1e-6, atol=1e-6
    )
    assert made == []


# --- the order in memory


def test_images_have_their_channels_last_all_the_way() -> None:
    y = network(padding=1)(images()).primitive
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 4, 4)], ids=str)
def test_sequences_and_volumes_stay(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    assert channels_last(x) is x
