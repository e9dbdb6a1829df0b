"""The walk over a module: what is changed, what is left alone, what is refused; states and their records.

Serves: phlox/optim/step/validation.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import OptimizerError, RecordError
from phlox.record import FULL, JsonRecorder, MessagePackRecorder, Record, SafetensorsRecorder
from tests.calls import calls_of

TAPE = Autodiff(NumPy()).device()
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
ADAPTED = [
    optim.AdamWConfig(),
    optim.SgdConfig(momentum=0.9),
    optim.SgdConfig(momentum=0.9, dampening=0.1),
    optim.SgdConfig(),
]


class Net(px.Module):
    def __init__(self, device: Any = TAPE) -> None:
        self.used = nn.Linear(3, 2, device=device)
        self.unused = nn.Linear(2, 2, device=device)
        self.running = px.Param(px.ones((2,), device=device), trained=False)
        self.count = px.Param(px.arange(2, device=device))

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.used(x).square() * self.running.val()


def gradients(model: Any) -> optim.GradientsParams:
    device = model.params()[0].device
    loss = model(px.tensor(X, device=device, kind=px.Float)).sum()
    return optim.GradientsParams.from_grads(loss.backward(), model)


def train(model: Any, optimizer: optim.Optimizer, steps: int) -> Any:
    for _ in range(steps):
        model = optimizer.step(0.01, model, gradients(model))
    return model


def arrays(model: px.Module) -> list[Any]:
    return [param.val().numpy().copy() for param in model.params()]


@pytest.mark.parametrize("config", ADAPTED, ids=repr)
def test_only_trained_parameters_with_gradients_change(config: Any) -> None:
    model = Net().init(0)
    for param in model.used.params()[1:]:
        param.set_trained(False)
    before, optimizer = arrays(model), config.init()
    after = train(model, optimizer, 3)
    changed = [not np.array_equal(a, b) for a, b in zip(before, arrays(after), strict=True)]
    assert changed == [True, False, False, False, False, False]
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(model), strict=True))  # the old module stays
    assert set(optimizer.states) == {model.used.weight.id}
    assert [p.id for p in after.params()] == [p.id for p in model.params()]
    assert after.used.weight.val().is_require_grad() and not after.used.bias.val().is_require_grad()


def test_tied_parameters_are_updated_once() -> None:
    class Tied(px.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(3, 3, bias=False, device=TAPE)
            self.b = self.a.weight

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.a(x) @ self.b.val()

    model = Tied().init(0)
    grad = gradients(model).get(model.b.id)
    assert grad is not None
    after = optim.SgdConfig().init().step(0.1, model, gradients(model))
    assert after.b is after.a.weight
    np.testing.assert_allclose(after.b.val().numpy(), model.b.val().numpy() - 0.1 * grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), np.float32(-1.0)])
def test_bad_rates(lr: Any) -> None:
    model = Net().init(0)
    with pytest.raises(OptimizerError, match="learning rate must be a finite number of at least zero"):
        optim.SgdConfig().init().step(lr, model, gradients(model))


def test_a_rate_may_be_a_numpy_number_and_not_a_tensor() -> None:
    model = Net().init(0)
    one = optim.SgdConfig().init().step(np.float64(0.5), model, gradients(model))
    other = optim.SgdConfig().init().step(0.5, model, gradients(model))
    np.testing.assert_array_equal(arrays(one)[0], arrays(other)[0])
    with pytest.raises(OptimizerError, match="not a tensor"):
        optim.SgdConfig().init().step(px.tensor(0.5), model, gradients(model))  # type: ignore[arg-type]


def test_gradients_that_do_not_fit() -> None:
    model, other = Net().init(0), Net().init(1)
    bias = model.used.params()[1].id
    optimizer = optim.AdamWConfig().init()
    with pytest.raises(OptimizerError, match=r"none of the 2 gradients is of a parameter of this Net.*used\.weight"):
        optimizer.step(0.1, model, gradients(other))
    grads = gradients(model)
    wrong = optim.GradientsParams({**dict(grads.items()), bias: px.ones((3,))})
    with pytest.raises(
        OptimizerError, match=r"used\.bias: the gradient is Float of shape \(3,\).*Float of shape \(2,\)"
    ):
        optimizer.step(0.1, model, wrong)
    assert not optimizer.states  # a step that fails changes nothing
    integers = optim.GradientsParams({bias: px.arange(2)})
    with pytest.raises(OptimizerError, match=r"used\.bias: the gradient is Int"):
        optimizer.step(0.1, model, integers)
    assert np.array_equal(arrays(optimizer.step(0.1, model, optim.GradientsParams({})))[0], arrays(model)[0])


def test_gradients_and_states_come_from_other_backends() -> None:
    model = Net().init(0)
    grads = gradients(model)
    for target in (Jax(), Torch(), NumPy(float="f64")):
        moved, optimizer = model.to_device(Autodiff(target)), optim.AdamWConfig().init()
        stepped = train(model, optimizer, 2)
        expected = train(model, optim.AdamWConfig().init(), 3)
        got = optimizer.step(0.01, stepped.to_device(Autodiff(target)), gradients(stepped))
        np.testing.assert_allclose(arrays(got)[0], arrays(expected)[0], rtol=1e-5)
        assert optim.SgdConfig().init().step(0.1, moved, grads).used.weight.val().backend is Autodiff(target)


class Returns(optim.SimpleOptimizer):
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        return self.fn(tensor), state


@pytest.mark.parametrize("fn", [lambda t: t.sum(), lambda t: t.to_device("torch"), lambda t: t > 0.0])
def test_a_step_that_returns_something_else_is_refused(fn: Any) -> None:
    model = Net().init(0)
    with pytest.raises(OptimizerError, match=r"used\.weight: Returns\.step must return a tensor like the parameter"):
        optim.OptimizerAdaptor(Returns(fn)).step(0.1, model, gradients(model))


class Odd(optim.SimpleOptimizer):
    def init(self, tensor: Any) -> Any:
        return (px.zeros_like(tensor), [0, 1.5, None], {"name": "x", "deep": {"flag": True}})

    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        kept, (count, real, nothing), named = state
        kept = kept * 0.5 + grad
        return tensor - kept * (lr * real), (kept, [count + 1, real * 0.75, nothing], named)


@pytest.mark.parametrize("recorder", [None, SafetensorsRecorder, MessagePackRecorder, JsonRecorder])
@pytest.mark.parametrize("make", [*(config.init for config in ADAPTED), lambda: optim.OptimizerAdaptor(Odd())])
def test_resuming_from_a_record_goes_on_bit_for_bit(make: Any, recorder: Any, tmp_path: Path) -> None:
    model, optimizer = Net().init(0), make()
    half = train(model, optimizer, 4)
    expected = train(half, optimizer, 4)
    again, resumed = Net().init(0), make()
    again = train(again, resumed, 4)
    model_record, record = again.into_record(), resumed.into_record()
    if recorder is not None:
        tool = recorder(precision=FULL)
        record = tool.load(tool.save(record, tmp_path / "optimizer"))
        model_record = tool.load(tool.save(model_record, tmp_path / "model"))
    fresh, continued = Net(), make()
    fresh.load_record(model_record)
    continued.load_record(record)
    for a, b in zip(arrays(train(fresh, continued, 4)), arrays(expected), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("target", [Jax(), Torch(), NumPy(float="f64")], ids=repr)
@pytest.mark.parametrize("compiled", [False, True])
def test_resuming_on_another_backend(target: Backend, compiled: bool) -> None:
    model, optimizer = Net().init(0), optim.AdamWConfig().init()
    half = train(model, optimizer, 5)
    record, weights = optimizer.into_record(), half.into_record()
    expected = train(half, optimizer, 5)
    resumed, other = optim.AdamWConfig().init(), Net(Autodiff(target).device()).load_record(weights)
    resumed.load_record(record)

    def step(model: Any, optimizer: Any, x: px.Tensor) -> Any:
        loss = model(x).sum()
        return optimizer.step(0.01, model, optim.GradientsParams.from_grads(loss.backward(), model))

    run = px.compile(step) if compiled else step
    for _ in range(5):
        other = run(other, resumed, px.tensor(X, device=Autodiff(target).device(), kind=px.Float))
    for a, b in zip(arrays(other), arrays(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_records_that_do_not_fit() -> None:
    model, optimizer = Net().init(0), optim.AdamWConfig().init()
    train(model, optimizer, 1)
    record, states = optimizer.into_record(), dict(optimizer.states)
    with pytest.raises(RecordError, match="was it made from a module"):
        optimizer.load_record(model.into_record())
    id = model.used.weight.id
    entries: dict[str, Any] = {path: record[path] for path in record.paths()}
    without = {path: entry for path, entry in entries.items() if path != f"states.{id}.state.moment_1"}
    swapped = {**entries, f"states.{id}.state.time": entries[f"states.{id}.state.moment_1"]}
    broken = {**entries, f"states.{id}.skeleton": ["dict", 3]}
    for bad in (without, swapped, broken):
        with pytest.raises(RecordError, match=f"states.{id}.state: the optimizer's state is incomplete or damaged"):
            optimizer.load_record(Record(bad))
    assert set(optimizer.states) == set(states)

    sgd = optim.SgdConfig(momentum=0.9).init()
    with pytest.raises(
        RecordError, match=r"states\.\w+: the record is not one of Sgd: expected velocity, found moment_1"
    ):
        sgd.load_record(record)
    assert not sgd.states
    wide = px.Param(px.ones((3, 5), device=TAPE), id=id)
    loaded = optim.AdamWConfig().init()
    loaded.load_record(record)
    model.used.weight, model.used.bias = wide, None
    grads = optim.GradientsParams({id: px.ones((3, 5))})
    with pytest.raises(OptimizerError, match=r"used\.weight: .*moment_1: expected Float of shape \(3, 5\)"):
        loaded.step(0.1, model, grads)


def test_state_follows_the_parameter_through_surgery() -> None:
    model, optimizer = (
        nn.Sequential([nn.Linear(3, 3, device=TAPE), nn.Linear(3, 2, device=TAPE)]).init(0),
        optim.AdamWConfig().init(),
    )
    model = train(model, optimizer, 3)
    kept = {p.id: optimizer.states[p.id]["moment_1"].numpy().copy() for p in model.layers[1].params()}
    model.layers.insert(1, nn.Linear(3, 3, device=TAPE).init(5))
    before = {id: optimizer.states[id]["time"] for id in optimizer.states}
    model = train(model, optimizer, 1)
    for id in kept:
        assert optimizer.states[id]["time"] == before[id] + 1
    assert all(optimizer.states[p.id]["time"] == 1 for p in model.layers[1].params())


def test_states_that_cannot_be_taken_apart() -> None:
    class Bad(optim.SimpleOptimizer):
        def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
            return tensor, {1, object()}

    model, optimizer = Net().init(0), optim.OptimizerAdaptor(Bad())
    model = optimizer.step(0.1, model, gradients(model))
    with pytest.raises(OptimizerError, match="got object"):
        optimizer.into_record()


def test_functional_gradients() -> None:
    model = Net().init(0)
    x = px.tensor(X, device=TAPE)
    (loss, extra), grads = px.value_and_grad(lambda m: (m(x).sum(), "extra"))(model)
    assert extra == "extra" and loss.item() == model(x).sum().item()
    expected = gradients(model)
    for id, tensor in expected.items():
        np.testing.assert_array_equal(grads.get(id).numpy(), tensor.numpy())
    np.testing.assert_allclose(px.grad(lambda t: (t * t).sum())(px.tensor([1.0, 2.0])).numpy(), [2.0, 4.0])
    for call in (
        lambda: px.grad(lambda m: m)(3),
        lambda: px.grad(lambda m: 3.0)(model),
        lambda: px.grad(lambda m: m(x.inner()).sum())(model.valid()),
    ):
        with pytest.raises(px.errors.AutodiffError, match="^grad: "):
            call()


@pytest.mark.parametrize("lr", ["0.1", None, True, [0.1], np.ones(2)], ids=["str", "None", "bool", "list", "array"])
def test_a_rate_that_is_no_number(lr: Any) -> None:
    model = nn.Linear(300, 300).init(seed=0).train()
    grads = optim.GradientsParams({param.id: px.ones(param.shape) for param in model.params()})
    optimizer = optim.AdamWConfig().init(donate=True)
    with pytest.raises(OptimizerError, match=r"^the learning rate must be a number, got an? \w+$"):
        optimizer.step(lr, model, grads)
    rate: Any = np.array(0.1)
    assert optimizer.step(rate, model, grads).weight.shape == (300, 300)  # nothing has been used up


def test_arguments_in_another_order_or_of_another_kind() -> None:
    model = nn.Linear(3, 3).init(seed=0).train()
    optimizer: Any = optim.SgdConfig().init()
    grads = optim.GradientsParams({param.id: px.ones(param.shape) for param in model.params()})
    raw = model(px.Tensor.from_inner(px.ones((1, 3)))).sum().backward()
    for wrong, what in ((raw, "a Gradients"), (None, "a NoneType"), ([1.0], "a list")):
        with pytest.raises(OptimizerError, match=rf"got {what}; after loss\.backward\(\) make them with GradientsPar"):
            optimizer.step(0.1, model, wrong)
    with pytest.raises(OptimizerError, match="got a GradientsParams as module"):
        optimizer.step(0.1, grads, model)


def test_a_step_takes_few_calls() -> None:
    """A step is short to follow in a debugger, and its calls are most of what a small one costs."""
    device = Autodiff(NumPy()).device()
    model, optimizer = nn.Linear(4, 3, device=device).init(0), optim.AdamWConfig().init()
    grads = optim.GradientsParams.from_grads(model(px.ones((2, 4), device=device)).sum().backward(), model)
    for _ in range(2):
        model = optimizer.step(0.1, model, grads)
    calls, files = calls_of(lambda: optimizer.step(0.1, model, grads))
    assert calls <= 100
    assert len(files) <= 15, sorted(files)
