"""Layers and losses against torch.nn with the same weights: values, and gradients of input and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, PhloxError, ShapeError

BACKENDS: list[Backend] = [NumPy(float="f64"), Torch(float="f64"), NumPy(), Jax(), Torch()]
RNG = np.random.default_rng(0)


def transposed(module: Any, layer: Any) -> None:
    layer.weight.data = torch.tensor(module.weight.val().numpy().T.astype(np.float64).copy())
    if layer.bias is not None:
        layer.bias.data = torch.tensor(module.bias.val().numpy().astype(np.float64))


def same_names(module: Any, layer: Any) -> None:
    for name in ("weight", "bias"):
        if getattr(layer, name, None) is not None:
            getattr(layer, name).data = torch.tensor(getattr(module, name).val().numpy().astype(np.float64))


def greek(module: Any, layer: Any) -> None:
    layer.weight.data = torch.tensor(module.gamma.val().numpy().astype(np.float64))
    layer.bias.data = torch.tensor(module.beta.val().numpy().astype(np.float64))


def nothing(module: Any, layer: Any) -> None:
    pass


F64 = torch.float64
Case = tuple[str, Callable[[Any], Any], Callable[[], Any], tuple[int, ...], Callable[[Any, Any], None]]
IMAGE = (2, 4, 9, 8)
STRIDED: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "bias": False}
GROUPED: dict[str, Any] = {"padding": 2, "dilation": 2, "groups": 2}
POOLED: dict[str, Any] = {"stride": (2, 1), "padding": 1}
CASES: list[Case] = [
    ("linear", lambda d: nn.Linear(5, 3, device=d), lambda: torch.nn.Linear(5, 3), (4, 2, 5), transposed),
    ("linear, one vector", lambda d: nn.Linear(5, 3, device=d), lambda: torch.nn.Linear(5, 3), (5,), transposed),
    (
        "linear, no bias", lambda d: nn.Linear(5, 3, bias=False, device=d), lambda: torch.nn.Linear(5, 3, bias=False),
        (4, 5), transposed,
    ),
    ("norm", lambda d: shifted(nn.LayerNorm(6, device=d)), lambda: torch.nn.LayerNorm(6), (4, 3, 6), greek),
    (
        "norm, epsilon", lambda d: shifted(nn.LayerNorm(6, epsilon=0.1, device=d)),
        lambda: torch.nn.LayerNorm(6, eps=0.1), (4, 6), greek,
    ),
    ("conv", lambda d: nn.Conv2d(4, 6, 3, device=d), lambda: torch.nn.Conv2d(4, 6, 3), IMAGE, same_names),
    (
        "conv, strided", lambda d: nn.Conv2d(4, 6, (3, 2), device=d, **STRIDED),
        lambda: torch.nn.Conv2d(4, 6, (3, 2), **STRIDED), IMAGE, same_names,
    ),
    (
        "conv, grouped", lambda d: nn.Conv2d(4, 6, 3, device=d, **GROUPED),
        lambda: torch.nn.Conv2d(4, 6, 3, **GROUPED), IMAGE, same_names,
    ),
    (
        "conv, depthwise", lambda d: nn.Conv2d(4, 4, 3, groups=4, device=d),
        lambda: torch.nn.Conv2d(4, 4, 3, groups=4), IMAGE, same_names,
    ),
    ("max pool", lambda d: nn.MaxPool2d(2), lambda: torch.nn.MaxPool2d(2), IMAGE, nothing),
    (
        "max pool, overlapping", lambda d: nn.MaxPool2d((3, 2), **POOLED),
        lambda: torch.nn.MaxPool2d((3, 2), **POOLED), IMAGE, nothing,
    ),
    ("mean pool", lambda d: nn.AvgPool2d(2), lambda: torch.nn.AvgPool2d(2), IMAGE, nothing),
    (
        "mean pool, padded", lambda d: nn.AvgPool2d((3, 2), **POOLED),
        lambda: torch.nn.AvgPool2d((3, 2), **POOLED), IMAGE, nothing,
    ),
    ("relu", lambda d: nn.Relu(), lambda: torch.nn.ReLU(), (3, 4), nothing),
    ("gelu", lambda d: nn.Gelu(), lambda: torch.nn.GELU(), (3, 4), nothing),
    ("gelu, tanh", lambda d: nn.Gelu(approximate=True), lambda: torch.nn.GELU("tanh"), (3, 4), nothing),
    ("silu", lambda d: nn.Silu(), lambda: torch.nn.SiLU(), (3, 4), nothing),
    ("sigmoid", lambda d: nn.Sigmoid(), lambda: torch.nn.Sigmoid(), (3, 4), nothing),
    ("tanh", lambda d: nn.Tanh(), lambda: torch.nn.Tanh(), (3, 4), nothing),
    ("flatten", lambda d: nn.Flatten(), lambda: torch.nn.Flatten(), IMAGE, nothing),
]  # fmt: skip


def shifted(norm: nn.LayerNorm) -> nn.LayerNorm:
    norm.init()
    device = norm.gamma.device
    norm.gamma.set(px.tensor(np.linspace(-1, 2, 6), device=device, kind=px.Float))
    norm.beta.set(px.tensor(np.linspace(0.5, -1, 6), device=device, kind=px.Float))
    return norm


def tolerances(backend: Backend) -> dict[str, Any]:
    return {"rtol": 1e-9, "atol": 1e-11} if "f64" in repr(backend) else {"rtol": 2e-4, "atol": 2e-5}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize(("name", "make", "reference", "shape", "give"), CASES, ids=[case[0] for case in CASES])
def test_layers(name: str, make: Any, reference: Any, shape: tuple[int, ...], give: Any, backend: Backend) -> None:
    device = Autodiff(backend).device()
    module, layer = make(device), reference().double()
    if module.params():
        module.init(1)
    give(module, layer)
    values = RNG.normal(size=shape) * 2
    x = px.tensor(values, device=device, kind=px.Float).require_grad()
    expected_x = torch.tensor(values, requires_grad=True)
    y, expected = module(x), layer(expected_x)
    close = tolerances(backend)
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), **close)
    cotangent = RNG.normal(size=y.shape)
    grads = y.backward(px.tensor(cotangent, device=backend, kind=px.Float))
    expected.backward(torch.tensor(cotangent))
    gradient = x.grad(grads)
    assert gradient is not None and expected_x.grad is not None
    np.testing.assert_allclose(gradient.numpy(), expected_x.grad.numpy(), **close)
    own = dict(px.GradientsParams.from_grads(grads, module).items())
    found = [p.grad.numpy() for p in layer.parameters() if p.grad is not None]
    wanted = [gradient.T for gradient in found] if give is transposed else found
    assert len(own) == len(wanted)
    for got, want in zip(own.values(), wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=close["rtol"], atol=close["atol"] * 10)
    # the view for inference computes the same
    np.testing.assert_allclose(module.valid()(x.inner()).numpy(), y.numpy(), **close)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_embedding(backend: Backend) -> None:
    device = Autodiff(backend).device()
    module, layer = nn.Embedding(5, 3, device=device).init(0), torch.nn.Embedding(5, 3, dtype=F64)
    same_names(module, layer)
    indices = np.array([[0, 4, 4], [1, 0, 4]])
    y, expected = module(px.tensor(indices, device=device)), layer(torch.tensor(indices))
    np.testing.assert_array_equal(y.numpy(), expected.detach().numpy())
    grads = px.GradientsParams.from_grads((y * y).sum().backward(), module)
    (expected * expected).sum().backward()
    gradient = grads.get(module.weight.id)
    assert gradient is not None and layer.weight.grad is not None
    np.testing.assert_allclose(gradient.numpy(), layer.weight.grad.numpy(), **tolerances(backend))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4)])
def test_losses(backend: Backend, shape: tuple[int, ...]) -> None:
    device = Autodiff(backend).device()
    logits, targets = RNG.normal(size=shape) * 5, RNG.integers(0, 4, size=shape[:-1])
    others = RNG.normal(size=shape)
    for ours, reference in (
        (
            lambda x: nn.cross_entropy_loss(x, px.tensor(targets, device=device)),
            lambda x: torch.nn.functional.cross_entropy(x.reshape(-1, 4), torch.tensor(targets).reshape(-1)),
        ),
        (
            lambda x: nn.mse_loss(x, px.tensor(others, device=device, kind=px.Float)),
            lambda x: torch.nn.functional.mse_loss(x, torch.tensor(others)),
        ),
    ):
        x = px.tensor(logits, device=device, kind=px.Float).require_grad()
        expected_x = torch.tensor(logits, requires_grad=True)
        loss, expected = ours(x), reference(expected_x)
        assert loss.shape == ()
        np.testing.assert_allclose(loss.item(), expected.item(), **tolerances(backend))
        gradient = x.grad(loss.backward())
        expected.backward()
        assert gradient is not None and expected_x.grad is not None
        np.testing.assert_allclose(gradient.numpy(), expected_x.grad.numpy(), **tolerances(backend))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"mse_loss: prediction of shape \(2,\), target of shape \(2, 1\)"):
        nn.mse_loss(px.ones((2,)), px.ones((2, 1)))
    for call in (
        lambda: nn.Linear(3, 2)(px.ones((4, 2))),
        lambda: nn.Conv2d(3, 2, 3)(px.ones((1, 2, 8, 8))),
        lambda: nn.Conv2d(3, 2, 3)(px.ones((1, 3, 2, 2))),
        lambda: nn.LayerNorm(3)(px.ones((4, 2))),
        lambda: nn.cross_entropy_loss(px.ones((3, 2)), px.arange(2)),
        lambda: nn.Embedding(3, 2)(px.tensor([0, 3])),
        lambda: nn.MaxPool2d(2)(px.ones((3, 2))),
    ):
        with pytest.raises(PhloxError):
            call()
    with pytest.raises(ConfigError, match="3 input and 4 output channels do not divide by 2"):
        nn.Conv2d(3, 4, 3, groups=2)
    for rate in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="rate lies between 0 and 1"):
            nn.Dropout(rate)


CONFIGS: list[tuple[Any, Any]] = [
    (nn.LinearConfig(4, 3, bias=False), lambda: nn.Linear(4, 3, bias=False)),
    (
        nn.LinearConfig(4, 3, initializer=nn.XavierNormal(gain=2.0)),
        lambda: nn.Linear(4, 3, initializer=nn.XavierNormal(gain=2.0)),
    ),
    (nn.Conv2dConfig(2, 4, (3, 1), groups=2), lambda: nn.Conv2d(2, 4, (3, 1), groups=2)),
    (nn.EmbeddingConfig(4, 3), lambda: nn.Embedding(4, 3)),
    (nn.LayerNormConfig(4, epsilon=0.1), lambda: nn.LayerNorm(4, epsilon=0.1)),
    (nn.DropoutConfig(0.25), lambda: nn.Dropout(0.25)),
    (nn.GeluConfig(approximate=True), lambda: nn.Gelu(approximate=True)),
    (nn.MaxPool2dConfig(2, stride=1), lambda: nn.MaxPool2d(2, stride=1)),
    (nn.AvgPool2dConfig((2, 3), padding=1), lambda: nn.AvgPool2d((2, 3), padding=1)),
]


@pytest.mark.parametrize(("config", "make"), CONFIGS, ids=lambda value: type(value).__name__)
def test_a_config_makes_the_layer(config: Any, make: Any) -> None:
    assert type(config).from_json(config.to_json()) == config
    px.random.seed(3)
    one = config.init()
    px.random.seed(3)
    other = make()
    assert type(one) is type(other) and repr(one) == repr(other)
    for (path, a), (other_path, b) in zip(one.named_params(), other.named_params(), strict=True):
        assert path == other_path
        np.testing.assert_array_equal(a.val().numpy(), b.val().numpy())
    assert all(p.device == NumPy(float="f64").device() for p in config.init(NumPy(float="f64")).params())


def test_sequential() -> None:
    layers: list[Any] = [nn.Linear(2, 3), nn.Relu(), lambda x: x * 2.0, nn.Linear(3, 1)]
    model = nn.Sequential(layers)
    assert len(model) == 4 and model[1] is layers[1] and list(model) == layers
    x = px.ones((5, 2))
    np.testing.assert_array_equal(model(x).numpy(), layers[3](layers[0](x).relu() * 2.0).numpy())
    layers.append(nn.Relu())
    assert len(model) == 4
