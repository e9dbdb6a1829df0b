"""Calls of a compiled function that are like the one before, which are read in a shorter way: it must not show."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, Torch
from phlox.backend.parallel import RowGroup, rows_of
from phlox.errors import CompileError, DonatedError
from phlox.transform.compile.call_cache import CallCache

BACKENDS = (Jax(), Torch(), Jax(float="f64"))


class Net(px.Module):
    def __init__(self, device: Any, width: int = 3) -> None:
        self.layer = nn.Linear(2, width, device=device)
        self.dropout = nn.Dropout(0.5)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.dropout(self.layer(x)).square().mean()


def step(model: Any, optimizer: Any, lr: float, x: px.Tensor) -> Any:
    loss = model(x)
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss


def batch(backend: Backend, n: int = 4) -> px.Tensor:
    return px.tensor(np.linspace(-1, 1, 2 * n).reshape(n, 2), device=Autodiff(backend))


@pytest.mark.every(3)
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_numbers_shapes_and_settings_may_change_between_calls(backend: Backend) -> None:
    rates = [0.1, 0.1, 0.1, 0.0, -0.0 + 0.0, 0.2, 0.2, 0.1]
    batches = [4, 4, 4, 4, 6, 6, 4, 4]

    def trained(run: Any) -> tuple[list[float], Any]:
        px.random.seed(0)
        model, optimizer = Net(Autodiff(backend).device()).init(0), optim.AdamWConfig().init()
        losses: list[float] = []
        for turn, (rate, n) in enumerate(zip(rates, batches, strict=True)):
            if turn == 5:
                optimizer.grad_clipping = optim.GradientClipping.norm(0.01)
            model, loss = run(model, optimizer, rate, batch(backend, n))
            losses.append(loss.item())
        return losses, model

    compiled = px.compile(step, donate=("model", "optimizer"))
    got, mine = trained(compiled)
    wanted, other = trained(step)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    np.testing.assert_allclose(mine.layer.weight.val().numpy(), other.layer.weight.val().numpy(), rtol=1e-4, atol=1e-6)
    assert compiled.programs == 2  # without clipping and with it
    assert compiled.traces <= 6  # to find states; for two programs, at two sizes, and for numbers held by the engine


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=repr)
def test_signs_of_zero_and_numbers_that_are_none_reach_the_function(backend: Backend) -> None:
    divided = px.compile(lambda x, number: x / number)
    x = px.ones((1,), device=backend)
    for number in (2.0, 2.0, 2.0, 0.0, -0.0, 0.0, -0.0, float("nan"), float("nan"), 2.0, 2.0):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(divided(x, number).numpy(), np.float32(1.0) / np.float32(number))


def test_held_numbers_are_not_recorded_anew() -> None:
    scaled = px.compile(lambda x, number: x * number)
    x = px.ones((2,), device=Jax())
    for number in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0):
        assert scaled(x, number).tolist() == [number] * 2
    assert scaled.traces == 1


def test_a_number_that_is_held_within_another_trace_is_a_number_afterwards() -> None:
    scaled = px.compile(lambda number, x: x * number)
    x = px.ones((2,), device=Jax())
    scaled(2.0, x)

    @jax.jit
    def traced(array: jax.Array) -> jax.Array:
        given = px.Tensor.from_primitive(array, Jax(), px.Float)
        return [scaled(3.0, given) for _ in range(3)][-1].primitive

    np.testing.assert_array_equal(traced(jax.numpy.ones(2)), [3.0, 3.0])
    for _ in range(3):
        assert scaled(3.0, x).tolist() == [3.0, 3.0]


def test_a_number_may_be_donated() -> None:
    scaled = px.compile(lambda x, number: (x * number, x.sum() * number), donate=("number",))
    for _ in range(4):
        assert scaled(px.ones((2,), device=Jax()), 3.0)[0].tolist() == [3.0, 3.0]


def test_other_arguments_are_read_anew() -> None:
    device = Jax().device()
    run = px.compile(lambda model, x, flag: model.layer(x) if flag else x)
    first, second = Net(device).init(0), Net(device, 5).init(1)
    x = px.ones((1, 2), device=device)
    for model, flag, width in (
        (first, True, 3),
        (first, True, 3),
        (second, True, 5),
        (first, False, 2),
        (second, True, 5),
    ):
        assert run(model, x, flag).shape == (1, width)
    other = px.ones((1, 2), device=Jax(float="f64"))
    assert run(Net(other.device).init(0), other, True).backend is Jax(float="f64")
    with pytest.raises(CompileError, match="history"):
        run(first, px.ones((1, 2), device=Autodiff(Jax())).require_grad(), False)


def test_what_was_donated_is_still_refused() -> None:
    device = Autodiff(Jax()).device()
    run = px.compile(step, donate=("model",))
    model, optimizer, x = Net(device).init(0), optim.SgdConfig().init(), batch(Jax())
    used = model
    for _ in range(3):
        used, (model, _) = model, run(model, optimizer, 0.1, x)
    with pytest.raises(DonatedError, match="model was donated"):
        run(used, optimizer, 0.1, x)
    run(model, optimizer, 0.1, x)


@pytest.mark.full
def test_nothing_is_kept_alive() -> None:
    device = Autodiff(Jax()).device()
    run = px.compile(step)
    model, optimizer, x = Net(device).init(0), optim.AdamWConfig().init(), batch(Jax())
    for _ in range(3):
        model, _ = run(model, optimizer, 0.1, x)
    states = [state["moment_1"].primitive for state in optimizer.states.values()]
    gone = [weakref.ref(one) for one in (model, optimizer, *states)]
    del model, optimizer, states
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)


# --- calls that only hand over arrays


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=repr)
def test_a_model_that_stays_is_seen_as_it_is_now(backend: Backend) -> None:
    device = backend.device()

    class Stack(px.Module):
        def __init__(self, *widths: int) -> None:
            self.layers = [nn.Linear(2, width, device=device) for width in widths]
            self.factor = 2.0

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return sum((layer(x).sum(axis=-1) for layer in self.layers[1:]), self.layers[0](x).sum(axis=-1)) * (
                self.factor
            )

    def predict(model: Any, x: px.Tensor) -> px.Tensor:
        return model(x)

    run, model, other = px.compile(predict), Stack(3, 4).init(0), Stack(3, 4).init(1)

    def agree(model: Any, *sizes: int) -> None:
        for n in sizes:
            x = batch(backend, n).detach().to_device(device)
            np.testing.assert_allclose(run(model, x).numpy(), predict(model, x).numpy(), rtol=1e-5, atol=1e-6)

    agree(model, 4, 4, 4, 6, 4, 4)
    programs = run.programs
    agree(other, 4, 4)
    model.layers[1].weight.set(px.ones((2, 4), device=device))
    agree(model, 4, 4)
    agree(model.map(lambda path, param: param.map(lambda value: value * 3.0)), 4, 4)
    assert run.programs == programs
    model.factor = 5.0
    agree(model, 4, 4)
    model.layers[0] = nn.Linear(2, 7, device=device).init(3)
    agree(model, 4, 4)
    del model.layers[1]
    agree(model, 4, 4)
    agree(model.to_device(device), 4, 4)
    assert run.programs == programs + 2  # another number, and one layer less; another width is a matter of shapes


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=repr)
def test_a_shape_for_which_the_function_draws(backend: Backend) -> None:
    def noisy(x: px.Tensor) -> px.Tensor:
        return x + px.random.uniform(x.shape, device=x.device) if x.shape[0] > 2 else x * 2.0

    def drawn(run: Any) -> list[list[float]]:
        found: list[list[float]] = []
        for turn, n in enumerate((1, 1, 1, 3, 1, 3, 3, 1, 1, 4, 1, 1, 4)):
            if turn in (0, 8):
                px.random.seed(turn)
            found.append(run(px.ones((n,), device=backend)).tolist())
        with px.random.stream(7):
            found += [run(px.ones((n,), device=backend)).tolist() for n in (1, 3, 1, 3)]
        return found

    for mine, wanted in zip(drawn(px.compile(noisy)), drawn(noisy), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=repr)
def test_a_shape_for_which_the_function_changes_its_module(backend: Backend) -> None:
    device = backend.device()

    class Counting(px.Module):
        def __init__(self) -> None:
            self.count = px.Param(px.zeros((), device=device), trained=False)

        def __call__(self, x: px.Tensor, number: float) -> px.Tensor:
            if x.shape[0] > 2:
                self.count.set(self.count.val() + number)
            return x * number

    run, model = px.compile(lambda model, x, number: model(x, number)), Counting()
    counts: list[float] = []
    for n, number in ((1, 2.0), (1, 2.0), (1, 2.0), (3, 3.0), (1, 3.0), (3, 3.0), (3, 3.0), (4, 4.0), (4, 4.0)):
        assert run(model, px.ones((n,), device=device), number).tolist() == [number] * n
        counts.append(model.count.val().item())
    assert counts == [0.0, 0.0, 0.0, 3.0, 3.0, 6.0, 9.0, 13.0, 17.0]


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=repr)
def test_errors_at_another_shape_say_what_they_do_at_the_first(backend: Backend) -> None:
    run = px.compile(lambda x: x * x.sum().item() if x.shape[0] > 2 else x)
    for _ in range(3):
        run(px.ones((1,), device=backend))
    with pytest.raises(CompileError, match="is needed while the function is being compiled"):
        run(px.ones((3,), device=backend))
    assert run(px.ones((1,), device=backend)).tolist() == [1.0]


def test_a_model_that_was_donated_is_refused_by_a_prediction() -> None:
    device = Autodiff(Jax()).device()
    train, predict = px.compile(step, donate=("model",)), px.compile(lambda model, x: model.layer(x))
    model, optimizer, x = Net(device).init(0), optim.SgdConfig().init(), batch(Jax())
    for _ in range(3):
        predict(model, x)
    train(model, optimizer, 0.1, x)
    with pytest.raises(DonatedError, match="donated"):
        predict(model, x)


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=repr)
def test_constants_between_arrays(backend: Backend) -> None:
    run = px.compile(lambda x, mask, negate, y: (-x if negate else x) + y + (0.0 if mask is None else mask))
    x, y = px.ones((2,), device=backend), px.full((2,), 10.0, device=backend)
    for mask, negate, wanted in (
        (None, False, 11.0),
        (None, False, 11.0),
        (None, True, 9.0),
        (None, True, 9.0),
        (x, True, 10.0),
        (x, False, 12.0),
        (None, False, 11.0),
        (None, False, 11.0),
    ):
        assert run(x, mask, negate, y).tolist() == [wanted] * 2


def test_threads_that_predict_at_once() -> None:
    device = Jax().device()
    model, run = nn.Linear(2, 3, device=device).init(0), px.compile(lambda model, x: model(x))
    wanted: dict[int, Any] = {n: model(px.ones((n, 2), device=device)).numpy() for n in range(1, 6)}
    run(model, px.ones((1, 2), device=device))

    def predicted(n: int) -> bool:
        found = [run(model, px.ones((n, 2), device=device)).numpy() for _ in range(20)]
        return all(np.allclose(one, wanted[n]) for one in found)

    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(predicted, wanted))


def test_calls_on_the_rows_of_a_group_repeat_too(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated: list[object] = []
    call = CallCache.__call__

    def counted(self: CallCache, values: tuple[Any, ...]) -> Any:
        repeated.append(values)
        return call(self, values)

    monkeypatch.setattr(CallCache, "__call__", counted)
    model, x = nn.Linear(2, 3).init(0, "torch"), px.ones((4, 2), device="torch")
    fn = px.compile(lambda model, x: model(x))
    for _ in range(3):
        with rows_of(RowGroup(0, 2, (4, 3))):  # made anew for each batch
            fn(model, x)
    for _ in range(3):
        with rows_of(RowGroup(0, 2)), px.random.stream(1):  # whose draws are the same in all processes
            fn(model, x)
    assert len(repeated) == 4 and fn.traces == 2
