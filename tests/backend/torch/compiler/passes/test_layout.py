"""Programs on PyTorch keep what they update in the order that the kernels want, and nobody sees it but by strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.passes import layout
from phlox.record import Record

TAPE = Autodiff(Torch()).device()
TURNED, CHANNELS_LAST = (1, 0), (0, 2, 3, 1)


class Recurrent(px.Module):
    """An LSTM and a linear map."""

    order = TURNED

    def __init__(self) -> None:
        self.lstm = nn.Lstm(6, 5, device=TAPE)
        self.head = nn.Linear(5, 3, device=TAPE)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.head(self.lstm(x)[0])

    def turned(self) -> list[px.Param]:
        """What is kept in another order."""
        return [self.lstm.layers[0].weight, self.lstm.layers[0].recurrent]


class Images(px.Module):
    """Two convolutions, the second of single pixels, which lies in either order."""

    order = CHANNELS_LAST

    def __init__(self) -> None:
        self.first, self.second = nn.Conv2d(4, 6, 3, device=TAPE), nn.Conv2d(6, 2, 1, device=TAPE)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.second(self.first(x).relu())

    def turned(self) -> list[px.Param]:
        """What is kept in another order."""
        return [self.first.weight]


ENDS = (".safetensors", ".json", ".msgpack", ".phlox")
CASES = [(Recurrent, (2, 7, 6)), (Images, (2, 4, 5, 5))]
OPTIMIZERS = [
    lambda: optim.AdamWConfig().init(),
    lambda: optim.SgdConfig(momentum=0.9).init(),
    lambda: optim.AdamWConfig().init(grad_clipping=optim.GradientClipping.global_norm(0.5)),
]


def step(model: Any, optimizer: Any, x: px.Tensor) -> Any:
    loss = model(x).square().mean()
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(0.05, model, grads), loss


def images(shape: tuple[int, ...]) -> px.Tensor:
    return px.tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32), device=TAPE)


def array(param: px.Param) -> torch.Tensor:
    value: Any = param.val()
    return value.backend.strip(value.primitive)


def values(model: px.Module) -> list[Any]:
    return [param.val().numpy() for param in model.params()]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for every array that is brought into another order from now on."""
    found, original = list[int](), layout.laid

    def laid(x: torch.Tensor, order: layout.Order) -> torch.Tensor:
        found.append(1)
        return original(x, order)

    monkeypatch.setattr(layout, "laid", laid)
    return found


def train(run: Callable[..., Any], make: Any, shape: tuple[int, ...], optimizer: Any, n: int = 3) -> Any:
    model, x, losses = make().init(0), images(shape), list[float]()
    for _ in range(n):
        model, loss = run(model, optimizer, x)
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize(("make", "shape"), CASES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("donate", [(), ("model", "optimizer")])
def test_steps_give_the_eager_values_in_the_order_of_the_kernels(
    make: Any, shape: tuple[int, ...], optimizer: Any, donate: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, expected = train(step, make, shape, optimizer())
    brought = counted(monkeypatch)
    run, going = px.compile(step, donate=donate), optimizer()
    model, losses = train(run, make, shape, going, n=1)
    first = len(brought)
    assert first >= len(model.turned())
    for _ in range(2):
        model, loss = run(model, going, images(shape))
        losses.append(loss.item())
    assert len(brought) == first  # from the second step on all is where it belongs
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for a, b in zip(values(model), values(eager), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    turned = {id(param) for param in model.turned()}
    for param in model.params():
        x = array(param)
        assert layout.lies(x, make.order) if id(param) in turned else x.is_contiguous()
        assert x.is_contiguous() == (id(param) not in turned)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
@pytest.mark.parametrize(("make", "shape"), CASES)
def test_pytorchs_compiler_makes_code_for_that_order(
    make: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")
    eager, expected = train(step, make, shape, optim.AdamWConfig().init())
    model, losses = train(px.compile(step, donate=("model", "optimizer")), make, shape, optim.AdamWConfig().init())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for a, b in zip(values(model), values(eager), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    assert all(not array(param).is_contiguous() for param in model.turned())


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_such_a_model_is_like_any_other(make: Any, shape: tuple[int, ...], tmp_path: Any) -> None:
    model, _ = train(px.compile(step), make, shape, optim.AdamWConfig().init())
    plain = make().init(1)
    plain.load_record(Record({path: param.val().numpy().copy(order="C") for path, param in model.named_params()}))
    assert all(array(param).is_contiguous() for param in plain.params())
    x = images(shape)
    np.testing.assert_array_equal(model(x).numpy(), plain(x).numpy())
    for form in ENDS:
        files = [one.save(tmp_path / f"{name}{form}") for name, one in (("turned", model), ("plain", plain))]
        for file in files:
            again = make().init(2)
            again.load(file)
            for a, b in zip(values(again), values(model), strict=True):
                np.testing.assert_array_equal(a, b)
    # An eager step and a compiled one go on from either alike.
    for run in (step, px.compile(step)):
        one, other = (run(net, optim.AdamWConfig().init(), x)[0] for net in (model, plain))
        for a, b in zip(values(one), values(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_a_program_keeps_weights_that_it_had_to_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that only predicts takes weights row by row; those of another order it brings once."""
    model, _ = train(px.compile(step), Recurrent, (2, 7, 6), optim.AdamWConfig().init())
    brought = counted(monkeypatch)
    predict, x = px.compile(lambda model, x: model(x)), images((2, 7, 6))
    expected = model(x).numpy()
    for _ in range(3):
        np.testing.assert_allclose(predict(model, x).numpy(), expected, rtol=1e-6)
    assert len(brought) == 2
    with torch.no_grad():
        array(model.lstm.layers[0].weight).mul_(2.0)  # nobody does so, but what was written to is brought again
    np.testing.assert_allclose(predict(model, x).numpy(), model(x).numpy(), rtol=1e-6)
    assert len(brought) == 3


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_wanted_in_two_orders_lies_row_by_row(twice: bool) -> None:
    def wanting(w: px.Tensor, x: px.Tensor) -> Any:
        of = w.primitive
        turned, same = of.t().contiguous(), of.clone(memory_format=torch.contiguous_format) if twice else of
        return w - 0.5, px.Tensor.from_primitive(turned @ same, w.backend, px.Float) + x

    w, x = px.ones((2, 3), device=Torch()), px.ones((3, 3), device=Torch())
    new, _ = px.compile(wanting)(w, x)
    assert new.primitive.stride() == ((3, 1) if twice else (1, 2))


def test_orders() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        there = layout.laid(x, order)
        assert torch.equal(there, x) and layout.lies(there, order) and there.permute(order).is_contiguous()
        assert layout.lies(x, order) == (order == (0, 1, 2))
    assert layout.lies(torch.zeros(3, 1), (1, 0)) and not layout.lies(torch.zeros(4, 4)[::2], (0, 1))
