"""Layers against torch.nn with the same weights: values, gradients of input and parameters, and both modes.

Serves: phlox/nn/{activation,conv,flatten,linear,norm,pool}.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, KindError, ModuleError, PhloxError, ShapeError

BACKENDS: list[Backend] = [NumPy(float="f64"), NumPy(), Jax(), Torch()]

RNG = np.random.default_rng(0)

T, F = torch.nn, torch.nn.functional


@dataclass
class Case:
    """A layer, and its twin in PyTorch."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shape: tuple[int, ...]
    config: Any = None
    """The config of the layer, where it has one."""
    twin_args: tuple[Any, ...] = ()
    twin_kwargs: dict[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, device: Any = None) -> Any:
        place = {"device": device} if device is not None and has_params(self.ours) else {}
        return self.ours(*self.args, **self.kwargs, **place)

    def twin(self) -> Any:
        return self.theirs(*self.twin_args, **self.twin_kwargs).double()


def has_params(layer: Any) -> bool:
    return "device" in inspect.signature(layer).parameters


def case(name: str, ours: str, theirs: Any, shape: tuple[int, ...], *args: Any, **kwargs: Any) -> Case:
    """The twin takes the same arguments unless `twin` says otherwise: a tuple, a dict, or both."""
    twin = kwargs.pop("twin", None)
    twin_args = twin if isinstance(twin, tuple) else args
    twin_kwargs = twin if isinstance(twin, dict) else {} if isinstance(twin, tuple) else kwargs
    config = getattr(nn, f"{ours}Config", None)
    return Case(name, getattr(nn, ours), theirs, shape, config, twin_args, twin_kwargs, args, kwargs)


SEQUENCE, IMAGE, VOLUME, VECTORS = (2, 4, 9), (2, 4, 9, 8), (2, 4, 5, 4, 3), (3, 4)

STRIDED: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "bias": False}

GROUPED: dict[str, Any] = {"padding": 2, "dilation": 2, "groups": 2}

POOLED: dict[str, Any] = {"stride": (2, 1), "padding": 1}

GROWN: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}

CASES = [
    case("linear", "Linear", T.Linear, (4, 2, 5), 5, 3),
    case("linear, one vector", "Linear", T.Linear, (5,), 5, 3),
    case("linear, no bias", "Linear", T.Linear, (4, 5), 5, 3, bias=False),
    case("conv 1d", "Conv1d", T.Conv1d, SEQUENCE, 4, 6, 3, **GROUPED),
    case("conv 2d", "Conv2d", T.Conv2d, IMAGE, 4, 6, 3),
    case("conv 2d, strided", "Conv2d", T.Conv2d, IMAGE, 4, 6, (3, 2), **STRIDED),
    case("conv 2d, grouped", "Conv2d", T.Conv2d, IMAGE, 4, 6, 3, **GROUPED),
    case("conv 2d, depthwise", "Conv2d", T.Conv2d, IMAGE, 4, 4, 3, groups=4),
    case("conv 2d, same", "Conv2d", T.Conv2d, IMAGE, 4, 3, 3, padding="same"),
    case("conv 3d", "Conv3d", T.Conv3d, VOLUME, 4, 2, (3, 2, 1), padding=1),
    case("transposed conv 1d", "ConvTranspose1d", T.ConvTranspose1d, SEQUENCE, 4, 6, 3, **GROWN),
    case("transposed conv 2d", "ConvTranspose2d", T.ConvTranspose2d, (2, 4, 3, 4), 4, 6, (3, 2), **GROWN),
    case("transposed conv 2d, dilated", "ConvTranspose2d", T.ConvTranspose2d, (2, 4, 3, 4), 4, 3, 2, dilation=2),
    case("transposed conv 3d", "ConvTranspose3d", T.ConvTranspose3d, (2, 4, 2, 3, 2), 4, 2, 2, stride=2, bias=False),
    case("layer norm", "LayerNorm", T.LayerNorm, (4, 3, 6), 6),
    case("layer norm, two axes", "LayerNorm", T.LayerNorm, (4, 3, 6), (3, 6), epsilon=0.1, twin=((3, 6), 0.1)),
    case("layer norm, no bias", "LayerNorm", T.LayerNorm, (4, 6), 6, bias=False),
    case("layer norm, plain", "LayerNorm", T.LayerNorm, (4, 6), 6, affine=False, twin=(6, 1e-5, False)),
    case("rms norm", "RmsNorm", T.RMSNorm, (4, 3, 6), 6, epsilon=1e-3, twin=(6, 1e-3)),
    case("rms norm, two axes", "RmsNorm", T.RMSNorm, (4, 3, 6), (3, 6), affine=False, twin=((3, 6), 1e-6, False)),
    case("batch norm", "BatchNorm", T.BatchNorm1d, (6, 4), 4),
    case("batch norm of sequences", "BatchNorm", T.BatchNorm1d, SEQUENCE, 4, epsilon=0.1, twin=(4, 0.1)),
    case("batch norm of images", "BatchNorm", T.BatchNorm2d, IMAGE, 4, momentum=0.3),
    case("batch norm of volumes", "BatchNorm", T.BatchNorm3d, VOLUME, 4, affine=False),
    case("batch norm, no running", "BatchNorm", T.BatchNorm2d, IMAGE, 4, track_running_stats=False),
    case("group norm", "GroupNorm", T.GroupNorm, IMAGE, 2, 4),
    case("group norm, plain", "GroupNorm", T.GroupNorm, SEQUENCE, 2, 4, affine=False),
    case("instance norm", "InstanceNorm", T.InstanceNorm2d, IMAGE, 4),
    case("instance norm, affine", "InstanceNorm", T.InstanceNorm1d, SEQUENCE, 4, affine=True),
    case("max pool 1d", "MaxPool1d", T.MaxPool1d, SEQUENCE, 3, stride=2, padding=1, dilation=2),
    case("max pool 2d", "MaxPool2d", T.MaxPool2d, IMAGE, 2),
    case("max pool 2d, overlapping", "MaxPool2d", T.MaxPool2d, IMAGE, (3, 2), **POOLED),
    case("max pool 3d", "MaxPool3d", T.MaxPool3d, VOLUME, 2, ceil_mode=True),
    case("mean pool 1d", "AvgPool1d", T.AvgPool1d, SEQUENCE, 2, ceil_mode=True),
    case("mean pool 2d", "AvgPool2d", T.AvgPool2d, IMAGE, 2),
    case("mean pool 2d, padded", "AvgPool2d", T.AvgPool2d, IMAGE, (3, 2), count_include_pad=False, **POOLED),
    case("mean pool 3d", "AvgPool3d", T.AvgPool3d, VOLUME, (2, 2, 1)),
    case("adaptive mean pool 1d", "AdaptiveAvgPool1d", T.AdaptiveAvgPool1d, SEQUENCE, 4),
    case("adaptive mean pool 2d", "AdaptiveAvgPool2d", T.AdaptiveAvgPool2d, IMAGE, (3, None)),
    case("adaptive mean pool 3d", "AdaptiveAvgPool3d", T.AdaptiveAvgPool3d, VOLUME, 1),
    case("flatten", "Flatten", T.Flatten, IMAGE),
    case("flatten, some", "Flatten", T.Flatten, IMAGE, 1, 2),
    case("identity", "Identity", T.Identity, VECTORS),
    case("relu", "Relu", T.ReLU, VECTORS),
    case("relu6", "Relu6", T.ReLU6, VECTORS),
    case("leaky relu", "LeakyRelu", T.LeakyReLU, VECTORS, 0.2),
    case("prelu", "PRelu", T.PReLU, VECTORS),
    case("prelu, channels", "PRelu", T.PReLU, IMAGE, 4, slope=0.1, twin=(4, 0.1)),
    case("elu", "Elu", T.ELU, VECTORS, 0.7),
    case("selu", "Selu", T.SELU, VECTORS),
    case("celu", "Celu", T.CELU, VECTORS, 0.5),
    case("gelu", "Gelu", T.GELU, VECTORS),
    case("gelu, tanh", "Gelu", T.GELU, VECTORS, approximate=True, twin=("tanh",)),
    case("silu", "Silu", T.SiLU, VECTORS),
    case("mish", "Mish", T.Mish, VECTORS),
    case("sigmoid", "Sigmoid", T.Sigmoid, VECTORS),
    case("log sigmoid", "LogSigmoid", T.LogSigmoid, VECTORS),
    case("softplus", "Softplus", T.Softplus, VECTORS, 2.0),
    case("softsign", "Softsign", T.Softsign, VECTORS),
    case("tanh", "Tanh", T.Tanh, VECTORS),
    case("tanhshrink", "TanhShrink", T.Tanhshrink, VECTORS),
    case("hard sigmoid", "HardSigmoid", lambda: Formula(lambda x: (x / 6 + 0.5).clamp(0, 1)), VECTORS),
    case("hard swish", "HardSwish", T.Hardswish, VECTORS),
    case("hard tanh", "HardTanh", T.Hardtanh, VECTORS, -0.5, 1.5),
    case("hard shrink", "HardShrink", T.Hardshrink, VECTORS, 0.7),
    case("soft shrink", "SoftShrink", T.Softshrink, VECTORS, 0.7),
    case("threshold", "Threshold", T.Threshold, VECTORS, 0.1, -3.0),
    case("softmax", "Softmax", T.Softmax, VECTORS, 0),
    case("softmin", "Softmin", T.Softmin, VECTORS, -1),
    case("log softmax", "LogSoftmax", T.LogSoftmax, VECTORS, 1),
    case("glu", "Glu", T.GLU, IMAGE, 1),
    case(
        "swiglu", "SwiGlu", lambda: Formula(lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]), VECTORS, twin=()
    ),
    case("geglu", "GeGlu", lambda: Formula(lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]), VECTORS, twin=()),
]

each_case = pytest.mark.parametrize("case", CASES, ids=[one.name for one in CASES])

# JAX's kernels take long to compile: there one case of each layer, the one without a comma, is enough.
PAIRS = [(one, backend) for one in CASES for backend in BACKENDS if backend != Jax() or "," not in one.name]

on_each_backend = pytest.mark.parametrize(
    ("case", "backend"), PAIRS, ids=[f"{one.name}-{backend!r}" for one, backend in PAIRS]
)

THEIR_NAMES = {"gamma": "weight", "beta": "bias", "slope": "weight"}


def their_name(path: str) -> str:
    return THEIR_NAMES.get(path, path)


class Formula(torch.nn.Module):
    """For what torch.nn lacks, or computes with constants of float32 at float64."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.forward = function


def match(module: Any, twin: Any) -> None:
    """Give both the same values, random ones, so that no scale is one and no shift is zero."""
    for path, param in module.named_params():
        other = getattr(twin, their_name(path))
        values = np.abs(RNG.normal(size=param.shape)) + 0.3
        param.set(px.tensor(values, device=param.device, kind=px.Float))
        own = param.val().numpy().astype(np.float64)
        other.data = torch.tensor(own.T.copy() if isinstance(twin, torch.nn.Linear) else own)


def tolerances(backend: Backend) -> dict[str, Any]:
    return {"rtol": 1e-9, "atol": 1e-11} if "f64" in repr(backend) else {"rtol": 2e-4, "atol": 2e-5}


@pytest.mark.covering(2)
@on_each_backend
def test_layers(case: Case, backend: Backend) -> None:
    device = Autodiff(backend).device()
    module, twin, close = case.make(device), case.twin(), tolerances(backend)
    match(module, twin)
    values = RNG.normal(size=case.shape) * 2
    x = px.tensor(values, device=device, kind=px.Float).require_grad()
    expected_x = torch.tensor(values, requires_grad=True)
    y, expected = module(x), twin(expected_x)
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), **close)
    cotangent = RNG.normal(size=y.shape)
    grads = y.backward(px.tensor(cotangent, device=backend, kind=px.Float))
    expected.backward(torch.tensor(cotangent))
    gradient = x.grad(grads)
    assert gradient is not None and expected_x.grad is not None
    np.testing.assert_allclose(gradient.numpy(), expected_x.grad.numpy(), rtol=close["rtol"], atol=close["atol"] * 5)
    own = px.GradientsParams.from_grads(grads, module)
    assert len(own) == len(list(twin.parameters()))
    for path, param in module.named_params():
        other, found = getattr(twin, their_name(path)), own.get(param.id)
        if found is None:  # running statistics
            assert not param.trained
            np.testing.assert_allclose(param.val().numpy(), other.numpy(), **close)
        else:
            wanted = other.grad.numpy().T if isinstance(twin, torch.nn.Linear) else other.grad.numpy()
            np.testing.assert_allclose(found.numpy(), wanted, rtol=close["rtol"], atol=close["atol"] * 20)
    # The view for inference.
    np.testing.assert_allclose(module.valid()(x.inner()).numpy(), twin.eval()(expected_x).detach().numpy(), **close)


@each_case
def test_nothing_is_made_before_it_is_needed(case: Case) -> None:
    module, twin = case.make(), case.twin()
    assert not any(param.is_initialized for param in module.params())
    for path, param in module.named_params():
        shape = tuple(getattr(twin, their_name(path)).shape)
        assert param.shape == (shape[::-1] if isinstance(twin, torch.nn.Linear) else shape)
    assert not any(param.is_initialized for param in module.params())


@each_case
def test_a_config_makes_the_layer(case: Case) -> None:
    if case.config is None:
        assert not case.args and not case.kwargs  # what has no hyper-parameters needs no config
        return
    config = case.config(*case.args, **case.kwargs)
    assert case.config.from_json(config.to_json()) == config
    px.random.seed(3)
    one = config.init()
    px.random.seed(3)
    other = case.make()
    assert type(one) is type(other) and repr(one) == repr(other)
    for (path, a), (other_path, b) in zip(one.named_params(), other.named_params(), strict=True):
        assert path == other_path
        np.testing.assert_array_equal(a.val().numpy(), b.val().numpy())
    assert all(p.device == NumPy(float="f64").device() for p in config.init(NumPy(float="f64")).params())


def test_every_layer_is_in_the_table() -> None:
    everything = [getattr(nn, name) for name in nn.__all__]
    tested = {one.ours for one in CASES} | {nn.Dropout, nn.Embedding, nn.Sequential, nn.Activation}
    layers = {value for value in everything if isinstance(value, type) and issubclass(value, px.Module)}
    mine = {
        layer
        for layer in layers
        if not layer.__module__.startswith("phlox.nn.loss")
        and not any(part in layer.__module__ for part in ("attention", "rotary", "recurrent", "experts"))
    }
    assert mine == tested
    for layer in tested - {nn.Sequential}:
        assert hasattr(nn, f"{layer.__name__}Config") == bool(inspect.signature(layer).parameters), layer
    assert {one.ours for one, backend in PAIRS if backend == Jax()} == {one.ours for one in CASES}


def network(device: Any = None) -> nn.Sequential:
    """Something of everything."""
    return nn.Sequential(
        conv=nn.Conv2d(1, 4, 3, padding="same", bias=False, device=device),
        norm=nn.BatchNorm(4, device=device),
        act=nn.PRelu(4, device=device),
        pool=nn.MaxPool2d(2),
        up=nn.ConvTranspose2d(4, 4, 2, stride=2, device=device),
        group=nn.GroupNorm(2, 4, device=device),
        dropout=nn.Dropout(0.25),
        flatten=nn.Flatten(),
        head=nn.Linear(4 * 16, 3, device=device),
    )


def images(device: Any) -> Any:
    return px.tensor(np.random.default_rng(1).normal(size=(6, 1, 4, 4)), device=device, kind=px.Float)


def train_step(model: Any, optimizer: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    model = optimizer.step(0.05, model, optim.GradientsParams.from_grads(loss.backward(), model))
    return model, loss


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_training_is_the_same_on_every_backend_and_compiled(backend: Backend) -> None:
    def train(device: Any, step: Any) -> tuple[Any, list[float]]:
        px.random.seed(5)
        model, optimizer, losses = network(device).init(2), optim.SgdConfig().init(), []
        for _ in range(3):
            model, loss = step(model, optimizer, images(device))
            losses.append(loss.item())
        return model, losses

    reference, losses = train(Autodiff(NumPy(float="f64")).device(), train_step)
    step = px.compile(train_step) if backend == Jax() else train_step
    model, found = train(Autodiff(backend).device(), step)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    for (path, param), (_, wanted) in zip(model.named_params(), reference.named_params(), strict=True):
        np.testing.assert_allclose(
            param.val().numpy(), wanted.val().numpy(), rtol=2e-3, atol=1e-4, err_msg=f"{path} on {backend}"
        )
    assert not np.allclose(model["norm"].running_mean.val().numpy(), 0.0, atol=1e-4)


def test_inference_under_raw_jax_jit_and_records() -> None:
    model = network(Jax().device()).init(4)
    for param in (model["norm"].running_mean, model["norm"].running_var):
        param.set(px.full(param.shape, 0.5, device=Jax()))
    x = images(Jax().device())
    np.testing.assert_allclose(jax.jit(lambda m, t: m(t))(model, x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    twin = network(NumPy().device()).load_record(model.into_record())
    np.testing.assert_allclose(twin(images(NumPy().device())).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert not twin["norm"].running_var.trained and twin["norm"].gamma.trained


# What no type checker lets through.
ARRAY: Any = np.ones(3)
COMPLEX: Any = np.ones(3, complex)

FLOATS: Any = [1.0]

NUMBER: Any = 3

INTEGERS: Any = px.arange(3)

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: nn.Linear(3, 2)(ones(4, 2)), ShapeError, r"Linear\(weight \[3, 2\], bias \[2\]\): .*\(4, 2\)"),
    (lambda: nn.Linear(3, 2)(INTEGERS), KindError, r"Linear\(weight \[3, 2\], bias \[2\]\): .*\.float\(\)"),
    (lambda: nn.Linear(3, 2)(COMPLEX), KindError, r"Linear\(.*\): linear: x must be a Float tensor, got ndarray"),
    (lambda: nn.Linear(2, 2)(ARRAY), ShapeError, r"Linear\(.*\): linear: x of shape \(3,\)"),
    (lambda: nn.Conv2d(3, 2, 3)(ones(1, 2, 8, 8)), ShapeError, r"Conv2d\(weight \[2, 3, 3, 3\], bias \[2\]\): .*"),
    (lambda: nn.Conv2d(3, 2, 3)(ones(1, 3, 2, 2)), ShapeError, r"Conv2d\("),
    (lambda: nn.Conv1d(3, 2, 3)(ones(1, 3, 8, 8)), ShapeError, r"Conv1d\("),
    (lambda: nn.ConvTranspose2d(3, 2, 3)(ones(1, 2, 8, 8)), ShapeError, r"ConvTranspose2d\(weight \[3, 2, 3, 3\]"),
    (lambda: nn.LayerNorm(3)(ones(4, 2)), ShapeError, r"LayerNorm\(gamma \[3\], beta \[3\]\): "),
    (lambda: nn.LayerNorm(3, affine=False)(ones(4, 2)), ShapeError, r"LayerNorm: .*\(4, 2\).*\(3,\)"),
    (lambda: nn.RmsNorm(3)(ones(4, 2)), ShapeError, r"RmsNorm\(gamma \[3\]\): "),
    (lambda: nn.RmsNorm((2, 3), affine=False)(ones(4, 2, 2)), ShapeError, r"RmsNorm: .*\(2, 3\)"),
    (lambda: nn.GroupNorm(2, 4)(ones(1, 6, 3)), ShapeError, r"GroupNorm\("),
    (lambda: nn.GroupNorm(2, 4, affine=False)(ones(1, 6, 3)), ShapeError, r"GroupNorm: .* 4 channels"),
    (lambda: nn.InstanceNorm(4)(ones(1, 6, 3)), ShapeError, r"InstanceNorm: .* 4 channels"),
    (lambda: nn.BatchNorm(4)(ones(2, 6, 3)), ShapeError, r"BatchNorm\(gamma \[4\], beta \[4\]\): "),
    (lambda: nn.BatchNorm(4)(ones(4)), ShapeError, r"BatchNorm\(.*\[n, channels, \.\.\.\]"),
    (lambda: nn.PRelu(4)(ones(2, 3)), ShapeError, r"PRelu\(slope \[4\]\): "),
    (lambda: nn.Embedding(3, 2)(px.tensor([0, 3])), PhloxError, r"Embedding\(weight \[3, 2\]\): .*3"),
    (lambda: nn.Embedding(3, 2)(ones(2)), KindError, r"Embedding\(.*\.int\(\)"),
    (lambda: nn.MaxPool2d(2)(ones(3, 2)), ShapeError, r"MaxPool2d: .*\(3, 2\)"),
    (lambda: nn.AdaptiveAvgPool2d((1, 2, 3))(ones(1, 1, 3, 2)), ShapeError, r"AdaptiveAvgPool2d: "),
    (lambda: nn.Relu()(COMPLEX), KindError, r"Relu: relu takes a tensor, got a NumPy array of shape \(3,\)"),
    (lambda: nn.Relu()(px.tensor([True])), KindError, r"Relu: relu"),
    (lambda: nn.Glu()(ones(2, 3)), ShapeError, r"Glu: .*even size"),
    (lambda: nn.Softmax(2)(ones(2, 3)), PhloxError, r"Softmax: .*axis"),
    (lambda: nn.Flatten(4)(ones(2, 3)), PhloxError, r"Flatten: .*axis"),
    (lambda: nn.Flatten()(FLOATS), KindError, r"Flatten: flatten takes a tensor, got \[1.0\]"),
    (lambda: nn.Dropout()(FLOATS), KindError, r"Dropout: it takes a tensor, got \[1.0\]"),
    (
        lambda: nn.Sequential([nn.Relu(), nn.Sequential(head=nn.Linear(3, 2))])(ones(4, 2)), ShapeError,
        r"layers\.1\.layers\.head: Linear\(weight \[3, 2\], bias \[2\]\): linear: x of shape \(4, 2\)",
    ),
    (lambda: nn.Sequential(nn.Relu(), NUMBER)(ones(2)), ModuleError, r"layers\.1 is a int, which is not callable"),
    (lambda: nn.Sequential([nn.Linear(2, 2), nn.Relu]), ModuleError, r"the class Relu, not an instance; write Relu\("),
    (lambda: nn.Sequential(nn.Relu(), act=nn.Relu()), ModuleError, "name all layers, or none"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), ConfigError, "3 input and 4 output channels are not divisible by 2"),
    (lambda: nn.ConvTranspose1d(4, 3, 3, groups=2), ConfigError, "ConvTranspose1d: 4 input and 3 output channels"),
    (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ShapeError, r"Conv2d: kernel must be one or 2 integers .* got \(3, 3, 3\)"),
    (lambda: nn.Conv1d(3, 4, 0), ShapeError, "Conv1d: kernel must be one integer of at least 1, got 0"),
    (lambda: nn.GroupNorm(3, 4), ConfigError, "4 channels are not divisible by 3 groups"),
    (lambda: nn.BatchNorm(4, momentum=1.5), ConfigError, "momentum must be between 0 and 1"),
    (lambda: nn.PRelu(0), ConfigError, "must be positive, got 0"),
    (lambda: nn.Embedding(4, 2, padding_index=4), ConfigError, "padding_index 4 is out of range for 4 entries"),
    (lambda: nn.Dropout(-0.1), ConfigError, "rate must be between 0 and 1"),
    (lambda: nn.Dropout(float("nan")), ConfigError, "rate must be between 0 and 1"),
    (lambda: nn.Relu(inplace=True), TypeError, "Relu has no option 'inplace'"),  # type: ignore[call-arg]
    (lambda: nn.Linear(3, 2, initializer=nn.Eye), ConfigError, r"the class Eye, not an instance; write Eye\(\)"),  # type: ignore[arg-type]
    (lambda: nn.dropout(INTEGERS, 0.5), KindError, r"dropout: x must be a Float tensor"),
    (lambda: nn.dropout(ones(2), 1.5), PhloxError, "dropout: rate must be between 0 and 1, got 1.5"),
]  # fmt: skip


def ones(*shape: int) -> Any:
    return px.ones(shape)


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_wrong_use_is_one_sentence_that_names_the_layer(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
