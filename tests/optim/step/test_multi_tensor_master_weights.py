"""Parameters of half precision that are stepped in f32: against a reference with masters made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.record import FULL, SafetensorsRecorder

MAKE: dict[str, Callable[..., Any]] = {"numpy": NumPy, "jax": Jax, "torch": Torch}
DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
ON = pytest.mark.parametrize("engine", list(MAKE))
ELEMENT = pytest.mark.parametrize("element", list(DTYPES))
COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


class Weights(px.Module):
    def __init__(self, device: Any, values: Any = None) -> None:
        self.weight = px.Param(px.ones((3, 2), device=device) if values is None else px.tensor(values, device=device))


def half(engine: str, element: str) -> Backend:
    return MAKE[engine](float=element)


def one_step(model: Any, optimizer: Any, lr: float, grad: Any) -> Any:
    return optimizer.step(lr, model, optim.GradientsParams({model.weight.id: grad}))


def stepper(compiled: bool) -> Callable[..., Any]:
    return px.compile(one_step) if compiled else one_step


def array(model: Any) -> np.ndarray[Any, Any]:
    return model.weight.val().numpy().astype(np.float32)


def grads(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).normal(size=(3, 2)).astype(np.float32)


@COMPILED
@ELEMENT
@ON
def test_small_steps_add_up(engine: str, element: str, compiled: bool) -> None:
    backend = half(engine, element)
    grad, run = px.ones((3, 2), device=backend), stepper(compiled)
    with_master, without = Weights(backend), Weights(backend)
    one, other = optim.SgdConfig().init(), optim.SgdConfig().init(master_weights=False)
    for _ in range(200):
        with_master, without = run(with_master, one, 1e-4, grad), run(without, other, 1e-4, grad)
    np.testing.assert_array_equal(array(without), 1.0)
    master = one.states[with_master.weight.id].master
    np.testing.assert_allclose(master.numpy(), 1.0 - 200e-4, rtol=1e-5)
    assert master.numpy().dtype == np.float32 and master.backend is backend.full_precision()
    np.testing.assert_array_equal(array(with_master), master.numpy().astype(DTYPES[element]).astype(np.float32))
    assert with_master.weight.val().backend is backend


@COMPILED
@ELEMENT
@ON
@pytest.mark.parametrize("wide", [False, True], ids=["half gradients", "full gradients"])
def test_steps_are_those_of_masters_made_by_hand(engine: str, element: str, wide: bool, compiled: bool) -> None:
    backend, dtype = half(engine, element), DTYPES[element]
    start = grads(99).astype(dtype).astype(np.float32)
    model, optimizer = Weights(backend, start), optim.AdamWConfig().init()
    master, reference = Weights(NumPy(), start), optim.AdamWConfig().init()
    run = stepper(compiled)
    for number in range(8):
        # Those of full precision are below what f16 can hold, and must not be rounded to it.
        host = grads(number) * 1e-9 if wide else grads(number).astype(dtype).astype(np.float32)
        grad = px.tensor(host, device=backend.full_precision() if wide else backend)
        model = run(model, optimizer, 0.01, grad)
        master = one_step(master, reference, 0.01, px.tensor(host))
        state = optimizer.states[model.weight.id]
        np.testing.assert_allclose(state.master.numpy(), array(master), rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(array(model), state.master.numpy().astype(dtype).astype(np.float32))
    state = optimizer.states[model.weight.id]
    for name in ("moment_1", "moment_2"):
        expected = reference.states[master.weight.id][name].numpy()
        np.testing.assert_allclose(state[name].numpy(), expected, rtol=1e-5)
        assert state[name].numpy().dtype == np.float32


@COMPILED
@ELEMENT
@ON
def test_what_is_changed_from_outside_goes_on_from_there(engine: str, element: str, compiled: bool) -> None:
    backend, run = half(engine, element), stepper(compiled)
    model, optimizer, grad = Weights(backend), optim.SgdConfig().init(), px.ones((3, 2), device=backend)
    for _ in range(3):
        model = run(model, optimizer, 1e-4, grad)
    changed = array(model).copy()
    changed[1] = 4.0
    model.weight.set(px.tensor(changed, device=backend))
    model = run(model, optimizer, 1e-4, grad)
    master = optimizer.states[model.weight.id].master.numpy()
    np.testing.assert_allclose(master[[0, 2]], 1.0 - 4e-4, rtol=1e-6)
    np.testing.assert_allclose(master[1], 4.0 - 1e-4, rtol=1e-6)
    np.testing.assert_array_equal(array(model)[1], 4.0)


@COMPILED
@ELEMENT
@ON
@pytest.mark.parametrize("to", list(MAKE))
def test_a_record_keeps_masters(engine: str, to: str, element: str, compiled: bool, tmp_path: Path) -> None:
    backend, run = half(engine, element), stepper(compiled)
    model, optimizer, grad = Weights(backend), optim.AdamWConfig().init(), px.ones((3, 2), device=backend)
    for _ in range(3):
        model = run(model, optimizer, 1e-4, grad)
    recorder = SafetensorsRecorder(precision=FULL)
    recorder.save(model.into_record(), tmp_path / "model")
    recorder.save(optimizer.into_record(), tmp_path / "optimizer")
    target = half(to, element)
    other, resumed = Weights(target), optim.AdamWConfig().init()
    other.load_record(recorder.load(tmp_path / "model.safetensors"))
    resumed.load_record(recorder.load(tmp_path / "optimizer.safetensors"))
    again = stepper(compiled)
    for _ in range(3):
        model = run(model, optimizer, 1e-4, grad)
        other = again(other, resumed, 1e-4, px.ones((3, 2), device=target))
    one, two = (o.states[model.weight.id].master.numpy() for o in (optimizer, resumed))
    np.testing.assert_allclose(two, one, rtol=0.0 if to == engine else 1e-6)
    assert two.dtype == np.float32 and one[0, 0] < 1.0


@COMPILED
@ELEMENT
@ON
def test_precision_may_change_on_the_way(engine: str, element: str, compiled: bool) -> None:
    """From f32 to half and back, with masters and without; moments stay."""
    full, backend, run = MAKE[engine](), half(engine, element), stepper(compiled)
    model, optimizer, number = Weights(full), optim.AdamWConfig().init(), 0
    without = optim.AdamWConfig().init(master_weights=False)
    places = [full, backend, full, backend]
    for place in places:
        model = model.to_device(place)
        without.load_record(optimizer.into_record())
        for _ in range(2):
            number += 1
            model = run(model, optimizer, 1e-3, px.ones((3, 2), device=place))
        state = optimizer.states[model.weight.id]
        assert hasattr(state, "master") == (place is backend)
        assert state["time"] == number
        np.testing.assert_allclose(state["moment_1"].numpy(), 1.0 - 0.9**number, rtol=1e-6)
        assert state["moment_1"].backend is full
        # A record of a run with masters goes on in one without, and the other way round.
        run(model, without, 1e-3, px.ones((3, 2), device=place))
        half_state = without.states[model.weight.id]
        assert half_state["moment_1"].backend is full and not hasattr(half_state, "master")
    narrow = optim.AdamWConfig().init()
    narrow.load_record(without.into_record())
    model = run(model, narrow, 1e-3, px.ones((3, 2), device=backend))
    assert narrow.states[model.weight.id].master.backend is full


@COMPILED
@ON
def test_steps_of_masters_that_are_skipped(engine: str, compiled: bool) -> None:
    backend, run = half(engine, "bf16"), stepper(compiled)
    model, optimizer = Weights(backend), optim.AdamWConfig().init(skip_nonfinite=True)
    with np.errstate(all="ignore"):
        for scale in (1.0, np.inf, np.nan, 1.0):
            model = run(model, optimizer, 1e-3, px.full((3, 2), scale, device=backend))
    state = optimizer.states[model.weight.id]
    assert state["time"] == 2
    np.testing.assert_allclose(state.master.numpy(), (1 - 1e-5) ** 2 - 2e-3, rtol=1e-5)


@ELEMENT
def test_a_loop_of_a_program_with_masters_and_what_is_donated(element: str) -> None:
    backend = half("jax", element)
    several = px.compile(one_step, steps=4, over=("grad",), donate=("model", "optimizer"))
    model, optimizer = Weights(backend), optim.AdamWConfig().init()
    optimizer.load_record(_record_without_masters(model, backend))
    twin, other = model.to_device(half("numpy", element)), optim.AdamWConfig().init()
    other.load_record(optimizer.into_record())
    for _ in range(2):
        model = several(model, optimizer, 1e-4, px.ones((4, 3, 2), device=backend))
        for _ in range(4):
            twin = one_step(twin, other, 1e-4, px.ones((3, 2), device=twin.weight.device))
    np.testing.assert_allclose(
        optimizer.states[model.weight.id].master.numpy(), other.states[twin.weight.id].master.numpy(), rtol=1e-6
    )
    assert several.programs == 1


def _record_without_masters(model: Any, backend: Backend) -> Any:
    plain = optim.AdamWConfig().init(master_weights=False)
    one_step(model, plain, 1e-4, px.ones((3, 2), device=backend))
    return plain.into_record()


@COMPILED
def test_parameters_of_several_precisions_in_one_module(compiled: bool) -> None:
    class Mixed(px.Module):
        def __init__(self) -> None:
            self.half = px.Param(px.ones((2,), device=Jax(float="bf16")))
            self.full = px.Param(px.ones((2,), device=Jax()))

    def step(model: Any, optimizer: Any, g: Any) -> Any:
        named = {model.half.id: g.from_full_precision(model.half.val()), model.full.id: g}
        return optimizer.step(1e-4, model, optim.GradientsParams(named))

    run: Callable[..., Any] = px.compile(step) if compiled else step
    model, optimizer = Mixed(), optim.AdamWConfig().init()
    for _ in range(3):
        model = run(model, optimizer, px.ones((2,), device=Jax()))
    one, two = (optimizer.states[id] for id in (model.half.id, model.full.id))
    np.testing.assert_allclose(one.master.numpy(), model.full.val().numpy(), rtol=1e-6)
    np.testing.assert_array_equal(one["moment_2"].numpy(), two["moment_2"].numpy())


@COMPILED
@ON
def test_averages_of_the_schedule_free_weights_at_half_precision(engine: str, compiled: bool) -> None:
    backend, run = half(engine, "bf16"), stepper(compiled)
    model, optimizer = Weights(backend), optim.ScheduleFreeAdamWConfig().init()
    full, reference = Weights(NumPy()), optim.ScheduleFreeAdamWConfig().init()
    for _ in range(4):
        model = run(model, optimizer, 1e-2, px.ones((3, 2), device=backend))
        full = one_step(full, reference, 1e-2, px.ones((3, 2)))
    averaged = optimizer.averaged(model)
    assert averaged.weight.val().backend is backend
    np.testing.assert_allclose(array(averaged), array(reference.averaged(full)), rtol=5e-3)


@COMPILED
def test_training_with_scaled_losses_in_f16(compiled: bool) -> None:
    """Gradients that f16 cannot hold come to the masters at full precision."""
    device = Autodiff(NumPy(float="f16") if not compiled else Jax(float="f16")).device()
    model, optimizer = (
        nn.Linear(3, 1, bias=False, initializer=nn.Ones(), device=device).init(),
        optim.SgdConfig().init(),
    )
    scaler = optim.LossScaler(device=device)
    x = px.full((4, 3), 2.0**-14, device=device)

    def step(model: Any, optimizer: Any, scaler: Any, x: Any) -> Any:
        loss = (model(x) * 2.0**-12).mean()
        grads = optim.GradientsParams.from_grads(scaler.scaled(loss).backward(), model)
        return optimizer.step(2.0**10, model, scaler.unscaled(grads))

    run: Callable[..., Any] = px.compile(step) if compiled else step
    for _ in range(2):
        model = run(model, optimizer, scaler, x)
    master = optimizer.states[model.weight.id].master.numpy()
    np.testing.assert_allclose(1.0 - master, 2 * 2.0**-16, rtol=1e-2)


class Scalar(px.Module):
    def __init__(self, device: Any) -> None:
        self.weight = px.Param(px.tensor(1.0, device=device))


@COMPILED
@ELEMENT
@ON
def test_a_parameter_without_axes_stays_of_half_precision(engine: str, element: str, compiled: bool) -> None:
    """A number that is an argument of the program has no axes either, and more digits."""
    backend, run = half(engine, element), stepper(compiled)
    model, optimizer = Scalar(backend), optim.SgdConfig(momentum=0.9).init(master_weights=False)
    for number in range(3):
        model = run(model, optimizer, 0.1, px.tensor(0.5 + number, device=backend))
        assert model.weight.leaf.dtype == px.ones((1,), device=backend).primitive.dtype
    velocity, weight = 0.0, 1.0
    for number in range(3):
        velocity = velocity * 0.9 + 0.5 + number
        weight -= 0.1 * velocity
    assert model.weight.val().item() == pytest.approx(weight, rel=2e-2)
    assert optimizer.states[model.weight.id]["velocity"].numpy().dtype == np.float32
