"""L-BFGS against PyTorch's, call by call, and what it does at the edges.

Serves: phlox/optim/lbfgs/
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Float, Jax, NumPy, Torch
from phlox.errors import CompileError, ConfigError, OptimizerError, RecordError
from phlox.module import ParamId
from phlox.optim.lbfgs.line_search import Point, cubic_minimum, strong_wolfe
from phlox.record import DOUBLE, JsonRecorder, SafetensorsRecorder

BACKENDS: list[Backend] = [NumPy(float="f64"), Jax(float="f64"), Torch(float="f64")]
WIDE = Autodiff(NumPy(float="f64")).device()

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 3))
LABELS = (X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=30) > 0).astype(np.float64)[:, None]
TARGETS = np.sin(X.sum(axis=1, keepdims=True))
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "rosenbrock": [(), (3,)],
    "logistic": [(3, 1), (1,)],
    "mlp": [(3, 6), (6,), (6, 1), (1,)],
}
LRS = {"rosenbrock": 0.002, "logistic": 0.5, "mlp": 0.5}
"""Without a line search."""


def starts(name: str) -> list[np.ndarray[Any, Any]]:
    if name == "rosenbrock":
        return [np.array(-1.2), np.array([1.0, -0.5, 0.7])]
    draw = np.random.default_rng(1)
    return [draw.normal(size=shape) * 0.5 for shape in SHAPES[name]]


def compute(name: str, weights: list[Any], array: Callable[[Any], Any]) -> Any:
    """The loss, in what tensors of Phlox and of PyTorch have in common."""
    if name == "rosenbrock":
        first, rest = weights
        x = [first, rest[0], rest[1], rest[2]]
        terms = [(b - a * a) * (b - a * a) * 100.0 + (1.0 - a) * (1.0 - a) for a, b in pairwise(x)]
        return terms[0] + terms[1] + terms[2]
    if name == "logistic":
        w, b = weights
        score = (array(X) @ w + b) * array(1.0 - 2.0 * LABELS)
        return (score.exp() + 1.0).log().mean() + (w * w).sum() * 0.01
    a, b, c, d = weights
    error = (array(X) @ a + b).tanh() @ c + d - array(TARGETS)
    return (error * error).mean()


class Weights(px.Module):
    def __init__(self, values: list[Any], device: Any) -> None:
        self.weights = [px.Param(px.tensor(value, device=device, kind=Float)) for value in values]


def loss_of(name: str, device: Any) -> Callable[[Weights], px.Tensor]:
    def closure(model: Weights) -> px.Tensor:
        values = [param.val() for param in model.weights]
        return compute(name, values, lambda value: px.tensor(value, device=device, kind=Float))

    return closure


def by_torch(name: str, calls: int, lr: float, **options: Any) -> tuple[list[float], list[Any]]:
    weights = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in starts(name)]
    optimizer = torch.optim.LBFGS(weights, lr=lr, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = compute(name, weights, torch.tensor)
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(calls)]
    return losses, [weight.detach().numpy() for weight in weights]


def arrays(model: px.Module) -> list[Any]:
    return [param.val().numpy() for param in model.params()]


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("search", ["strong_wolfe", None], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_as_pytorch(name: str, search: Any, backend: Backend) -> None:
    lr = 1.0 if search else LRS[name]
    device = Autodiff(backend).device()
    model = Weights(starts(name), device)
    optimizer = optim.LbfgsConfig(max_iter=4, history=5, line_search=search).init()
    expected, weights = by_torch(name, 6, lr, max_iter=4, history_size=5, line_search_fn=search)
    losses: list[float] = []
    for _ in expected:
        model = optimizer.minimize(lr, model, loss_of(name, device))
        assert optimizer.outcome is not None
        losses.append(optimizer.outcome.loss)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for got, weight in zip(arrays(model), weights, strict=True):
        np.testing.assert_allclose(got, weight, rtol=1e-5, atol=1e-8)
    assert all(param.val().is_require_grad() for param in model.params())


@pytest.mark.parametrize("most", [1, 3, 7])
@pytest.mark.parametrize("search", ["strong_wolfe", None], ids=str)
def test_as_pytorch_with_few_evaluations(search: Any, most: int) -> None:
    expected, weights = by_torch("mlp", 5, 0.5, max_eval=most, line_search_fn=search)
    model, optimizer = Weights(starts("mlp"), WIDE), optim.LbfgsConfig(max_eval=most, line_search=search).init()
    for loss in expected:
        model = optimizer.minimize(0.5, model, loss_of("mlp", WIDE))
        assert optimizer.outcome is not None
        assert optimizer.outcome.loss == pytest.approx(loss, rel=1e-6)
        assert optimizer.outcome.evaluations <= most + 1
    for got, weight in zip(arrays(model), weights, strict=True):
        np.testing.assert_allclose(got, weight, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", SHAPES)
def test_a_line_search_finds_the_minimum(name: str) -> None:
    model = Weights(starts(name), WIDE)
    optimizer = optim.LbfgsConfig(max_iter=200, max_eval=1000, line_search="strong_wolfe").init()
    model = optimizer.minimize(1.0, model, loss_of(name, WIDE))
    end = optimizer.outcome
    assert end is not None and end.last_loss < end.loss
    if name != "mlp":
        assert end.reason in ("gradient", "change", "slope")
    if name == "rosenbrock":
        np.testing.assert_allclose(np.concatenate([x.ravel() for x in arrays(model)]), 1.0, rtol=1e-4)
    again = optimizer.minimize(1.0, model, loss_of(name, WIDE))
    assert loss_of(name, WIDE)(again).item() <= end.last_loss


@pytest.mark.full
@pytest.mark.parametrize("form", ["loss", "tuple", "gradients", "compiled"])
def test_forms_of_closures(form: str) -> None:
    device = Autodiff(Jax(float="f64")).device()
    loss = loss_of("mlp", device)
    closures: dict[str, Any] = {
        "loss": loss,
        "tuple": lambda model: (loss(model), "more"),
        "gradients": px.value_and_grad(lambda model: (loss(model), "more")),
        "compiled": px.compile(px.value_and_grad(loss)),
    }
    model, optimizer = Weights(starts("mlp"), device), optim.LbfgsConfig(max_iter=4, line_search="strong_wolfe").init()
    expected, _ = by_torch("mlp", 3, 1.0, max_iter=4, line_search_fn="strong_wolfe")
    for value in expected:
        model = optimizer.minimize(1.0, model, closures[form])
        assert optimizer.outcome is not None and optimizer.outcome.loss == pytest.approx(value, rel=1e-6)
    if form == "compiled":
        assert closures[form].programs == 1


class Net(px.Module):
    def __init__(self, device: Any = WIDE) -> None:
        self.first = nn.Linear(3, 4, device=device)
        self.norm = nn.BatchNorm(4, device=device)
        self.last = nn.Linear(4, 1, device=device)
        self.unused = nn.Linear(2, 2, device=device)
        self.count = px.Param(px.arange(2, device=device))

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.last(self.norm(self.first(x)).tanh())


def fit(model: Any) -> px.Tensor:
    device = model.first.weight.device
    x, y = (px.tensor(value, device=device, kind=Float) for value in (X, TARGETS))
    return nn.mse_loss(model(x), y)


@pytest.mark.parametrize("search", ["strong_wolfe", None], ids=str)
def test_what_is_not_trained_stays(search: Any) -> None:
    model = Net().init(0).freeze("last")
    before = {path: param.val().numpy().copy() for path, param in model.named_params()}
    once = model.map(lambda path, param: param)
    fit(once)
    statistics = {path: param.val().numpy() for path, param in once.named_params() if "running" in path}
    optimizer = optim.LbfgsConfig(max_iter=3, line_search=search).init()
    after = optimizer.minimize(0.1, model, fit)
    changed = {path for path, param in after.named_params() if not np.array_equal(before[path], param.val().numpy())}
    trained = {"first.weight", "norm.gamma", "norm.beta"}
    assert statistics and trained | set(statistics) <= changed <= trained | {"first.bias"} | set(statistics)
    for path, param in after.named_params():
        if path in statistics:  # those of one evaluation
            np.testing.assert_array_equal(param.val().numpy(), statistics[path])
    assert {path for path, param in model.named_params() if param.id in optimizer.states} == trained | {"first.bias"}
    assert [param.id for param in after.params()] == [param.id for param in model.params()]


def test_tied_parameters_are_one() -> None:
    class Tied(px.Module):
        def __init__(self) -> None:
            self.a = px.Param(px.tensor([2.0, -1.0], device=WIDE))
            self.b = self.a

    model = Tied()
    optimizer = optim.LbfgsConfig(line_search="strong_wolfe").init()
    after = optimizer.minimize(1.0, model, lambda m: (m.a.val() * m.b.val() - 4.0).square().sum())
    assert after.a is after.b and len(optimizer.states) == 1
    np.testing.assert_allclose(np.abs(arrays(after)[0]), 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    "recorder", [SafetensorsRecorder(precision=DOUBLE), JsonRecorder(precision=DOUBLE)], ids=["safetensors", "json"]
)
@pytest.mark.parametrize("search", ["strong_wolfe", None], ids=str)
def test_a_run_goes_on_from_a_record(search: Any, recorder: Any) -> None:
    config, loss = optim.LbfgsConfig(max_iter=3, history=4, line_search=search), loss_of("mlp", WIDE)
    model, optimizer = Weights(starts("mlp"), WIDE), config.init()
    for _ in range(3):
        model = optimizer.minimize(0.5, model, loss)
    weights, record = (recorder.from_bytes(recorder.to_bytes(part.into_record())) for part in (model, optimizer))
    again, resumed = Weights(starts("mlp"), WIDE), config.init()
    again.load_record(weights)
    resumed.load_record(record)
    for _ in range(3):
        model, again = optimizer.minimize(0.5, model, loss), resumed.minimize(0.5, again, loss)
        assert resumed.outcome == optimizer.outcome
    for a, b in zip(arrays(model), arrays(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_goes_on_on_another_backend() -> None:
    config = optim.LbfgsConfig(max_iter=3, line_search="strong_wolfe")
    model, optimizer = Weights(starts("mlp"), WIDE), config.init()
    model = optimizer.minimize(1.0, model, loss_of("mlp", WIDE))
    device = Autodiff(Torch(float="f64")).device()
    resumed = config.init()
    resumed.load_record(optimizer.into_record())
    other = resumed.minimize(1.0, model.to_device(device), loss_of("mlp", device))
    model = optimizer.minimize(1.0, model, loss_of("mlp", WIDE))
    for a, b in zip(arrays(model), arrays(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_other_parameters_begin_anew() -> None:
    model, optimizer = Net().init(0), optim.LbfgsConfig(max_iter=3, line_search="strong_wolfe").init()
    model = optimizer.minimize(1.0, model, fit)
    model = optimizer.minimize(1.0, model, fit)
    assert optimizer.outcome is not None and not optimizer.outcome.restarted
    frozen = model.freeze("last")
    restart = optimizer.minimize(1.0, frozen, fit)
    assert optimizer.outcome.restarted and optimizer.outcome.last_loss < optimizer.outcome.loss
    assert len(optimizer.states) == 4
    fresh = optim.LbfgsConfig(max_iter=3, line_search="strong_wolfe").init().minimize(1.0, frozen, fit)
    for a, b in zip(arrays(restart)[:4], arrays(fresh)[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    assert "kept: first.weight" in str(optimizer.report(restart))


def test_the_history_is_limited() -> None:
    model, optimizer = Weights(starts("mlp"), WIDE), optim.LbfgsConfig(history=3, line_search="strong_wolfe").init()
    optimizer.minimize(1.0, model, loss_of("mlp", WIDE))
    assert [len(state["steps"]) for state in optimizer.states.values()] == [3] * 4


def test_a_rate_of_zero_leaves_the_weights() -> None:
    model, optimizer = Weights(starts("mlp"), WIDE), optim.LbfgsConfig(line_search="strong_wolfe").init()
    after = optimizer.minimize(0.0, model, loss_of("mlp", WIDE))
    assert all(np.array_equal(a, b) for a, b in zip(arrays(model), arrays(after), strict=True))
    assert not optimizer.states and optimizer.outcome is not None and optimizer.outcome.evaluations == 1


class One(px.Module):
    def __init__(self, value: float = 2.0, device: Any = WIDE) -> None:
        self.x = px.Param(px.tensor([value], device=device))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_start_that_is_not_finite_is_an_error(value: float) -> None:
    optimizer = optim.LbfgsConfig().init()
    with pytest.raises(OptimizerError, match="the loss is not finite before the first step"):
        optimizer.minimize(1.0, One(), lambda m: (m.x.val() * value).sum())
    with pytest.raises(OptimizerError, match="the gradient of x is not finite"):
        optimizer.minimize(1.0, One(0.0), lambda m: m.x.val().sqrt().sum())
    assert not optimizer.states and optimizer.outcome is None


def test_a_line_search_comes_back_from_where_the_loss_is_not_finite() -> None:
    """x - log x, which is NaN below zero, where a first length of 30 leads."""
    optimizer = optim.LbfgsConfig(line_search="strong_wolfe").init()
    seen: list[float] = []

    def closure(model: Any) -> px.Tensor:
        loss = (model.x.val() - model.x.val().log()).sum()
        seen.append(loss.item())
        return loss

    model = optimizer.minimize(30.0, One(3.0), closure)
    assert any(math.isnan(loss) for loss in seen)
    np.testing.assert_allclose(arrays(model)[0], 1.0, rtol=1e-5)


def test_without_a_line_search_a_step_to_where_the_loss_is_not_finite_is_not_taken() -> None:
    optimizer = optim.LbfgsConfig().init()
    model = optimizer.minimize(30.0, One(3.0), lambda m: (m.x.val() - m.x.val().log()).sum())
    assert optimizer.outcome is not None and optimizer.outcome.reason == "not finite"
    assert arrays(model)[0].item() == 3.0 and not optimizer.states
    model = optimizer.minimize(0.5, model, lambda m: (m.x.val() - m.x.val().log()).sum())
    assert optimizer.outcome.last_loss < optimizer.outcome.loss and not optimizer.outcome.restarted


def test_a_search_that_finds_nothing_ends_where_it_began() -> None:
    """A gradient that leads uphill."""

    def closure(model: Any) -> Any:
        loss, grads = px.value_and_grad(lambda m: m.x.val().square().sum())(model)
        return loss, grads.map(lambda grad: -grad)

    optimizer = optim.LbfgsConfig(line_search="strong_wolfe").init()
    model = optimizer.minimize(1.0, One(), closure)
    assert optimizer.outcome is not None and optimizer.outcome.reason == "no step"
    assert arrays(model)[0].item() == 2.0 and not optimizer.states


def test_a_closure_that_fails_changes_nothing() -> None:
    model, optimizer, calls = Weights(starts("mlp"), WIDE), optim.LbfgsConfig().init(), [0]
    model = optimizer.minimize(0.5, model, loss_of("mlp", WIDE))
    before, weights, outcome = dict(optimizer.states), arrays(model), optimizer.outcome

    def failing(model: Weights) -> px.Tensor:
        calls[0] += 1
        if calls[0] > 3:
            raise RuntimeError("out of luck")
        return loss_of("mlp", WIDE)(model)

    with pytest.raises(RuntimeError, match="out of luck"):
        optimizer.minimize(0.5, model, failing)
    assert optimizer.states == before and optimizer.outcome is outcome
    assert all(np.array_equal(a, b) for a, b in zip(weights, arrays(model), strict=True))


@pytest.mark.parametrize("backend", [NumPy(float="f16"), Torch(float="bf16"), Jax(float="bf16")], ids=repr)
def test_half_precision(backend: Backend) -> None:
    device = Autodiff(backend).device()
    optimizer = optim.LbfgsConfig(line_search="strong_wolfe", tolerance_change=1e-4).init()
    model = optimizer.minimize(1.0, Weights(starts("logistic"), device), loss_of("logistic", device))
    assert optimizer.outcome is not None and optimizer.outcome.last_loss < 0.5 * optimizer.outcome.loss
    assert all(param.val().backend is Autodiff(backend) for param in model.params())


@pytest.mark.parametrize("backend", [NumPy(float="f16"), Torch(float="bf16"), Jax(float="bf16")], ids=repr)
def test_the_history_of_half_precision_is_in_f32(backend: Backend) -> None:
    """Of a parabola with a minimum that is reached by steps of f32, though the weights are rounded."""
    device = Autodiff(backend).device()
    optimizer = optim.LbfgsConfig(max_iter=4).init()
    optimizer.minimize(0.5, Weights(starts("logistic"), device), loss_of("logistic", device))
    for state in optimizer.states.values():
        parts = [state["gradient"], state["direction"], state["products"], *state["steps"], *state["differences"]]
        assert len(parts) > 4 and all(part.backend is backend.full_precision() for part in parts)


@pytest.mark.every(3)
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_states_may_be_looked_at_in_between_and_may_come_without_products(backend: Backend) -> None:
    """What is kept as one array goes on as it would have from the states, to the last digit."""
    device = Autodiff(backend).device()
    config, loss = optim.LbfgsConfig(max_iter=3, history=4, line_search="strong_wolfe"), loss_of("mlp", device)
    model = twin = older = Weights(starts("mlp"), device)
    optimizer, looked, old = config.init(), config.init(), config.init()
    for _ in range(4):
        model = optimizer.minimize(1.0, model, loss)
        twin = looked.minimize(1.0, twin, loss)
        older = old.minimize(1.0, older, loss)
        assert len(looked.states) == 4
        for state in old.states.values():
            assert state["products"].shape == (2, len(state["steps"]), len(state["steps"]))
            del state["products"]  # as in records of before
        assert optimizer.outcome == looked.outcome and optimizer.outcome is not None and old.outcome is not None
        assert old.outcome.last_loss == pytest.approx(optimizer.outcome.last_loss, rel=1e-9)
    for a, b, c in zip(arrays(model), arrays(twin), arrays(older), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-8)
    copied = copy.deepcopy(optimizer)
    assert len(copied.states) == 4 and repr(optimizer) == repr(copied) == "Lbfgs(4 states)"


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_directions_are_those_of_the_two_loops(backend: Backend) -> None:
    """A history that has gone round, against the recursion written out in NumPy."""
    device = Autodiff(backend).device()
    optimizer = optim.LbfgsConfig(max_iter=12, history=5, line_search="strong_wolfe").init()
    optimizer.minimize(1.0, Weights(starts("mlp"), device), loss_of("mlp", device))
    states = list(optimizer.states.values())

    def vector(parts: list[Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([part.numpy().reshape(-1) for part in parts])

    steps, differences = (
        [vector([state[name][k] for state in states]) for k in range(5)] for name in ("steps", "differences")
    )
    direction, parts = -vector([state["gradient"] for state in states]), []
    for s, y in zip(reversed(steps), reversed(differences), strict=True):
        parts.append(s @ direction / (s @ y))
        direction = direction - y * parts[-1]
    direction = direction * (steps[-1] @ differences[-1]) / (differences[-1] @ differences[-1])
    for s, y, part in zip(steps, differences, reversed(parts), strict=True):
        direction = direction + s * (part - y @ direction / (s @ y))
    np.testing.assert_allclose(vector([state["direction"] for state in states]), direction, rtol=1e-6, atol=1e-12)


def test_parameters_on_several_engines_and_precisions_are_one_vector() -> None:
    class Mixed(px.Module):
        def __init__(self, wide: bool) -> None:
            places: list[Any] = [NumPy(), Torch(), NumPy(float="f64")] if not wide else [NumPy(float="f64")] * 3
            self.parts = [
                px.Param(px.tensor([1.5, -2.0], device=Autodiff(place).device(), kind=Float)) for place in places
            ]

    def closure(model: Any) -> px.Tensor:
        a, b, c = (param.val().to_device(WIDE) for param in model.parts)
        return ((a - 1.0).square() * 3.0 + (b * a + c).square() + c.square()).sum()

    ends: list[Any] = []
    for wide in (False, True):
        optimizer = optim.LbfgsConfig(line_search="strong_wolfe", max_iter=6).init()
        ends.append(optimizer.minimize(1.0, Mixed(wide), closure))
    for one, two in zip(*map(arrays, ends), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_no_elements_at_all() -> None:
    empty = One().map(lambda path, param: px.Param(px.zeros((0,), device=WIDE)))
    optimizer = optim.LbfgsConfig().init()
    after = optimizer.minimize(1.0, empty, lambda m: m.x.val().sum())
    assert after.x.val().shape == (0,) and optimizer.outcome is not None and optimizer.outcome.reason == "gradient"


# --- bad input


def test_gradients_alone_are_not_enough() -> None:
    with pytest.raises(OptimizerError, match=r"call optimizer\.minimize\(lr, model, closure\)"):
        optim.LbfgsConfig().init().step(0.1, One(), optim.GradientsParams({}))


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), np.float32(-1.0)], ids=str)
def test_bad_rates(lr: Any) -> None:
    with pytest.raises(OptimizerError, match="learning rate must be a finite number of at least zero"):
        optim.LbfgsConfig().init().minimize(lr, One(), lambda m: m.x.val().sum())


@pytest.mark.parametrize("lr", [{"*": 0.1}, True, None], ids=str)
def test_rates_of_other_types(lr: Any) -> None:
    with pytest.raises(OptimizerError, match="takes one learning rate, a number, got"):
        optim.LbfgsConfig().init().minimize(lr, One(), lambda m: m.x.val().sum())


@pytest.mark.parametrize(
    ("closure", "message"),
    [
        (lambda m: 1.0, "a tensor of one element, got float"),
        (lambda m: (), "got tuple"),
        (lambda m: m.x.val().expand_dims(0).repeat(2, axis=0), r"got shape \(2, 1\)"),
        (lambda m: m.x.val().inner().sum(), "records no tape; move the module there"),
        (
            lambda m: (m.x.val().sum(), optim.GradientsParams({m.x.id: px.ones((3,))})),
            r"x: the gradient is Float of shape \(3,\)",
        ),
        (
            lambda m: (m.x.val().sum(), optim.GradientsParams({ParamId("other"): px.ones((1,))})),
            "none of the 1 gradients is of a parameter of this One",
        ),
    ],
    ids=["number", "nothing", "shape", "tape", "gradient", "other"],
)
def test_bad_closures(closure: Any, message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        optim.LbfgsConfig().init().minimize(0.1, One(), closure)


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_it_does_not_run_inside_a_compiled_function(backend: Backend) -> None:
    device = Autodiff(backend).device()

    @px.compile
    def step(model: One, optimizer: Any) -> One:
        return optimizer.minimize(0.1, model, lambda m: m.x.val().square().sum())

    if not backend.compiles:
        assert step(One(device=device), optim.LbfgsConfig().init()).x.val().item() < 2.0
        return
    with pytest.raises(CompileError, match=r"phlox\.compile\(phlox\.value_and_grad\(loss\)\)"):
        step(One(device=device), optim.LbfgsConfig().init())


def test_bad_records() -> None:
    model, optimizer = Weights(starts("mlp"), WIDE), optim.LbfgsConfig().init()
    optimizer.minimize(0.5, model, loss_of("mlp", WIDE))
    adam = optim.AdamWConfig().init()
    adam.step(0.1, One(), optim.GradientsParams({}))
    one = One()
    adam.step(0.1, one, optim.GradientsParams({one.x.id: px.ones((1,), device=WIDE)}))
    before = dict(optimizer.states)
    for wrong in (adam.into_record(), model.into_record()):
        with pytest.raises(RecordError, match=r"not one of Lbfgs|holds no optimizer state"):
            optimizer.load_record(wrong)
    damaged = optim.LbfgsConfig().init()
    states = damaged.states
    states.update({id: dict(state) for id, state in before.items()})
    states[model.weights[0].id]["scale"] = 7.0
    with pytest.raises(RecordError, match="differ from parameter to parameter"):
        optimizer.load_record(damaged.into_record())
    assert optimizer.states == before


def test_a_state_of_another_shape() -> None:
    one, optimizer = One(), optim.LbfgsConfig().init()
    optimizer.minimize(0.1, one, lambda m: m.x.val().square().sum())
    other = one.map(lambda path, param: px.Param(px.ones((2,), device=WIDE), id=param.id))
    with pytest.raises(OptimizerError, match=r"x: the history of L-BFGS is of shape \(1,\)"):
        optimizer.minimize(0.1, other, lambda m: m.x.val().square().sum())
    assert list(optimizer.report(other).misshapen) == ["x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history": 0}, "history must be at least one, got 0"),
        ({"max_iter": 0}, "max_iter must be at least one"),
        ({"max_eval": -1}, "max_eval must be at least one"),
        ({"tolerance_grad": -1.0}, "tolerance_grad must be at least zero"),
        ({"tolerance_change": float("nan")}, "tolerance_change must be at least zero"),
        ({"line_search": "armijo"}, "line_search"),
    ],
    ids=str,
)
def test_bad_hyper_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optim.LbfgsConfig(**options)


def test_configs_are_stored() -> None:
    config = optim.LbfgsConfig(line_search="strong_wolfe", max_eval=7)
    assert optim.LbfgsConfig.from_json(config.to_json()) == config


# --- the line search alone


def test_points_of_a_search_meet_the_conditions() -> None:
    functions: dict[str, tuple[Any, Any]] = {
        "cosine": (lambda t: -math.sin(t) - 0.05 * t, lambda t: -math.cos(t) - 0.05),
        "steep": (lambda t: math.exp(-t) + 1e-3 * t * t, lambda t: -math.exp(-t) + 2e-3 * t),
        "kink": (lambda t: abs(t - 1.3) ** 1.5, lambda t: 1.5 * abs(t - 1.3) ** 0.5 * (1 if t > 1.3 else -1)),
    }
    for loss, slope in functions.values():
        start = Point(0.0, loss(0.0), slope(0.0), None)
        for length in (1e-4, 0.1, 1.0, 20.0):
            found = strong_wolfe(lambda t: Point(t, loss(t), slope(t), None), start, length, 40, 1e-12)  # noqa: B023
            assert found.loss <= start.loss + 1e-4 * found.length * start.slope
            assert abs(found.slope) <= -0.9 * start.slope


def test_cubics() -> None:
    def at(x: float) -> Point:
        return Point(x, x**3 - 6 * x**2 + 9 * x + 1, 3 * x**2 - 12 * x + 9, None)

    assert cubic_minimum(at(0.5), at(5.0), 0.0, 10.0) == pytest.approx(3.0)
    assert cubic_minimum(at(5.0), at(0.5), 0.0, 10.0) == pytest.approx(3.0)
    assert cubic_minimum(at(0.5), at(5.0), 0.0, 2.0) == 2.0
    assert cubic_minimum(at(0.5), Point(5.0, math.inf, math.nan, None), 0.0, 4.0) == 2.0
    assert cubic_minimum(at(2.0), at(2.0), 1.0, 4.0) == 2.5
