"""Optax's transformations as optimizers of modules, against Optax alone: eager and compiled, saved and loaded.

Serves: phlox/backend/jax/trees.py, phlox/optim/optax/state.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Float, Jax, NumPy, Torch
from phlox.errors import OptimizerError, RecordError
from phlox.module import ParamId
from phlox.record import FULL, JsonRecorder, SafetensorsRecorder, gather, load, restore, save

STEPS = 50
DEVICE = Autodiff(Jax()).device()
rng = np.random.default_rng(0)
X = rng.normal(size=(16, 4)).astype(np.float32)
Y = (X @ rng.normal(size=(4, 2)) + 0.5).astype(np.float32)
PATHS = ["body.weight", "body.bias", "head.weight", "head.bias"]


def labels(tree: Any) -> Any:
    return {path: "vectors" if path.endswith("bias") else "matrices" for path in tree}


def heads(tree: Any) -> Any:
    return {path: "head" in path for path in tree}


def raw_noise() -> Any:
    """A state of unsigned integers, beyond those that are signed, and of eight bits."""

    def init(params: Any) -> Any:
        return {"key": jnp.array([4294967291, 7], jnp.uint32), "small": jnp.array([200, 3], jnp.uint8)}

    def update(grads: Any, state: Any, params: Any = None, **more: Any) -> Any:
        key, next_key = jax.random.split(state["key"])
        factor = 1.0 + 0.1 * jax.random.normal(key) + state["small"][0] / 1000.0
        small = state["small"] + jnp.uint8(1)
        return jax.tree.map(lambda grad: grad * factor, grads), {"key": next_key, "small": small}

    return optax.GradientTransformation(init, cast("Any", update))


CASES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.05, momentum=0.9, nesterov=True),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "schedule": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.05, 5, 50)),
    "labels": lambda: optax.multi_transform({"matrices": optax.adamw(1e-2), "vectors": optax.sgd(0.1)}, labels),
    "masked": lambda: optax.chain(optax.sgd(0.05), optax.masked(optax.scale(0.5), heads)),
    "hyper-parameters": lambda: optax.inject_hyperparams(optax.adamw)(
        learning_rate=optax.linear_schedule(0.05, 0.01, 30), weight_decay=0.01
    ),
    "several steps": lambda: optax.MultiSteps(optax.adam(1e-2), every_k_schedule=3).gradient_transformation(),
    "finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
    "half moments": lambda: optax.adam(1e-2, mu_dtype=jnp.bfloat16),
    "noise": lambda: optax.chain(optax.add_noise(0.01, 0.5, jax.random.key(3)), optax.sgd(0.05)),
    "raw key": lambda: optax.chain(raw_noise(), optax.sgd(0.05)),
    "flat": lambda: optax.flatten(optax.adam(1e-2)),
    "schedule-free": lambda: optax.contrib.schedule_free_adamw(1e-2),
    "lion": lambda: optax.lion(1e-3),
    "adafactor": lambda: optax.adafactor(1e-2),
    "average": lambda: optax.chain(optax.adam(1e-2), optax.ema(0.9)),
}


class Net(px.Module):
    def __init__(self, device: Any = DEVICE, hidden: int = 3) -> None:
        self.body = nn.Linear(4, hidden, device=device)
        self.head = nn.Linear(hidden, 2, device=device)
        self.unused = nn.Linear(2, 2, device=device)
        self.running = px.Param(px.ones((2,), device=device), trained=False)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.head(self.body(x).tanh()) * self.running.val()


def loss_of(model: Any) -> px.Tensor:
    device = model.running.device
    x, y = (px.tensor(value, device=device, kind=Float) for value in (X, Y))
    return nn.mse_loss(model(x), y)


def train(model: Any, optimizer: Any, lr: float) -> Any:
    _, grads = px.value_and_grad(loss_of)(model)
    return optimizer.step(lr, model, grads)


def run(model: Any, optimizer: Any, steps: int, compiled: bool = False, lr: float = 1.0, traces: int = 1) -> Any:
    step: Any = px.compile(train, donate=("model", "optimizer")) if compiled else train
    begins = not optimizer.states
    for _ in range(steps):
        model = step(model, optimizer, lr)
    if compiled:
        assert step.traces == traces + begins  # `unused` takes no step, which only a trace can tell
    return model


def weights(model: Any) -> dict[str, Any]:
    return {path: param.val().numpy().copy() for path, param in model.named_params()}


def by_optax(transformation: Any, start: dict[str, Any], steps: int = STEPS) -> dict[str, Any]:
    params = {path: jnp.asarray(start[path]) for path in PATHS}

    def loss(tree: dict[str, Any]) -> Any:
        hidden = jnp.tanh(X @ tree["body.weight"] + tree["body.bias"])
        return jnp.mean((hidden @ tree["head.weight"] + tree["head.bias"] - Y) ** 2)

    state = transformation.init(params)

    @jax.jit
    def step(tree: Any, state: Any) -> Any:
        updates, state = transformation.update(jax.grad(loss)(tree), state, tree)
        return optax.apply_updates(tree, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return {path: np.asarray(value) for path, value in params.items()}


@pytest.mark.covering(1)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_as_optax_alone(name: str, compiled: bool) -> None:
    model = Net().init(0)
    start = weights(model)
    steps = STEPS if compiled or name in ("adamw", "labels") else 4
    expected = by_optax(CASES[name](), start, steps)
    optimizer = optim.OptaxAdaptor(CASES[name]())
    after = weights(run(model, optimizer, steps, compiled))
    # Where signs decide, or what is nearly nothing is divided by its like, the last bit may.
    rtol, atol = (2e-3, 2e-3) if name in ("lion", "adafactor", "half moments") else (2e-4, 2e-5)
    for path, value in after.items():
        if path in PATHS:
            assert not np.array_equal(value, start[path])
            np.testing.assert_allclose(value, expected[path], rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(value, start[path])
    assert repr(optimizer) == "OptaxAdaptor(4 states)"


@pytest.mark.parametrize("name", ["adamw", "labels", "hyper-parameters", "several steps", "raw key", "schedule-free"])
def test_several_steps_in_one_call(name: str) -> None:
    several = px.compile(train, steps=4)
    model = Net().init(0)
    expected = run(model, optim.OptaxAdaptor(CASES[name]()), 8, compiled=False)
    optimizer = optim.OptaxAdaptor(CASES[name]())
    for _ in range(2):
        model = several(model, optimizer, 1.0)
    for path, value in weights(expected).items():
        np.testing.assert_allclose(weights(model)[path], value, rtol=2e-3, atol=2e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "compiled"), [*[(name, True) for name in CASES], ("adamw", False), ("raw key", False), ("noise", False)]
)
def test_a_run_goes_on_from_a_file(name: str, compiled: bool, tmp_path: Path) -> None:
    model, optimizer = Net().init(0), optim.OptaxAdaptor(CASES[name]())
    model = run(model, optimizer, 4, compiled)
    save(gather(model=model, optimizer=optimizer), tmp_path / "run.safetensors", FULL)
    again, resumed = Net().init(1), optim.OptaxAdaptor(CASES[name]())
    restore(load(tmp_path / "run.safetensors"), model=again, optimizer=resumed)
    # Other element types than the backend's come back at the first step.
    traces = 1 + (name in ("half moments", "raw key"))
    again, model = run(again, resumed, 4, compiled, traces=traces), run(model, optimizer, 4, compiled)
    for path, value in weights(model).items():
        np.testing.assert_array_equal(weights(again)[path], value)


def test_half_precision_is_kept_in_a_record() -> None:
    optimizer = optim.OptaxAdaptor(CASES["half moments"]())
    model = run(Net().init(0), optimizer, 1)
    recorder = JsonRecorder(precision=FULL)
    resumed = optim.OptaxAdaptor(CASES["half moments"]())
    resumed.load_record(recorder.from_bytes(recorder.to_bytes(optimizer.into_record())))
    run(model, resumed, 1)
    state = resumed.states[model.body.weight.id]
    assert sorted((name, part.primitive.dtype.name) for name, part in state.items()) == [
        ("0.mu", "bfloat16"),
        ("0.nu", "float32"),
    ]


def test_the_rate_scales_the_updates() -> None:
    model = Net().init(0)
    one = weights(run(model, optim.OptaxAdaptor(optax.sgd(0.1)), 3, lr=0.5))
    other = weights(run(model, optim.OptaxAdaptor(optax.sgd(learning_rate=1.0)), 3, lr=0.05))
    third = weights(run(model, optim.SgdConfig().init(), 3, lr=0.05))
    for path, value in one.items():
        np.testing.assert_allclose(value, other[path], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(value, third[path], rtol=1e-5, atol=1e-7)


def test_a_rate_that_changes_does_not_recompile() -> None:
    step = px.compile(train, donate=("model", "optimizer"))
    model, optimizer = Net().init(0), optim.OptaxAdaptor(optax.adam(1.0))
    model = step(model, optimizer, 0.1)
    traces = step.traces
    for lr in (0.2, 0.3):
        model = step(model, optimizer, lr)
    assert step.traces == traces == 2  # one of them to see that `unused` takes no step


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_double_precision(compiled: bool) -> None:
    device = Autodiff(Jax(float="f64")).device()
    model = Net(device).init(0)
    expected = Net(device).init(0)
    model = run(model, optim.OptaxAdaptor(optax.adam(1.0)), 4, compiled, lr=0.01)
    expected = run(expected, optim.AdamConfig().init(), 4, True, lr=0.01)
    for path, value in weights(model).items():
        assert value.dtype == np.float64
        np.testing.assert_allclose(value, weights(expected)[path], rtol=1e-7, atol=1e-9)


def test_half_precision() -> None:
    model = run(Net(Autodiff(Jax(float="bf16")).device()).init(0), optim.OptaxAdaptor(optax.adamw(1e-2)), 3, True)
    assert model.body.weight.val().primitive is not None
    assert all(param.val().backend is Autodiff(Jax(float="bf16")) for param in model.params())


def test_states_follow_parameters() -> None:
    optimizer = optim.OptaxAdaptor(optax.adam(1e-2))
    model = run(Net().init(0), optimizer, 3)
    frozen = run(model.freeze("body"), optimizer, 1)
    held = {id: state for id, state in optimizer.states.items() if id != "shared"}
    assert set(held) == {param.id for path, param in model.named_params() if path in PATHS}
    before = {path: optimizer.states[param.id]["0.mu"] for path, param in model.named_params() if path in PATHS}
    # Another head, and everything at another place.
    wider = nn.Sequential([frozen.unfreeze(), nn.Linear(2, 2, device=DEVICE).init(1)])
    report = optimizer.report(wider)
    assert {*report.anew} >= {"layers.1.weight", "layers.1.bias"} and "layers.0.body.weight" in report.kept
    assert not report.orphans
    x, y = px.tensor(X, device=DEVICE), px.tensor(Y, device=DEVICE)
    _, grads = px.value_and_grad(lambda m: nn.mse_loss(m(x), y))(wider)
    after = optimizer.step(1.0, wider, grads)
    grad = grads.get(model.body.weight.id)
    assert grad is not None
    kept = optimizer.states[model.body.weight.id]["0.mu"]
    np.testing.assert_allclose(
        kept.numpy(), 0.9 * before["body.weight"].numpy() + 0.1 * grad.numpy(), rtol=1e-5, atol=1e-8
    )
    assert optimizer.states[ParamId("shared")]["shared"]["0.count"].item() == 5
    assert after.layers[1].weight.id in optimizer.states


def test_states_follow_parameters_into_a_program() -> None:
    step = px.compile(train, donate=("optimizer",))
    optimizer = optim.OptaxAdaptor(optax.adam(1e-2))
    model = step(Net().init(0), optimizer, 1.0)
    model = step(model.freeze("body"), optimizer, 1.0)
    model = step(model.unfreeze("body"), optimizer, 1.0)
    other = optim.OptaxAdaptor(optax.adam(1e-2))
    again = train(Net().init(0), other, 1.0)
    again = train(again.freeze("body"), other, 1.0)
    again = train(again.unfreeze("body"), other, 1.0)
    for path, value in weights(again).items():
        np.testing.assert_allclose(weights(model)[path], value, rtol=1e-4, atol=1e-6)


def test_a_record_from_before_a_layer_came() -> None:
    optimizer = optim.OptaxAdaptor(optax.adam(1e-2))
    model = run(Net().init(0).freeze("head"), optimizer, 2, compiled=True)
    resumed = optim.OptaxAdaptor(optax.adam(1e-2))
    resumed.load_record(optimizer.into_record())
    expected = weights(run(model.unfreeze("head"), optimizer, 2))
    after = run(model.unfreeze("head"), resumed, 2, compiled=True, traces=2)  # that `head` begins, a trace tells
    for path, value in expected.items():
        np.testing.assert_allclose(weights(after)[path], value, rtol=1e-4, atol=1e-6)


def test_an_update_that_needs_more() -> None:
    transformation = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))

    def step(model: Any, optimizer: Any) -> Any:
        loss, grads = px.value_and_grad(loss_of)(model)
        return optimizer.step(1.0, model, grads, value=loss * 0.0 + 1.0)

    optimizer, model = optim.OptaxAdaptor(transformation), Net().init(0)
    for _ in range(3):
        model = step(model, optimizer)
    assert optimizer.states[ParamId("shared")]["shared"]["1.scale"].item() == 0.25
    compiled, other = px.compile(step), optim.OptaxAdaptor(transformation)
    again = Net().init(0)
    for _ in range(3):
        again = compiled(again, other)
    for path, value in weights(model).items():
        np.testing.assert_allclose(weights(again)[path], value, rtol=1e-5, atol=1e-6)


def test_a_state_that_holds_parameters_can_be_donated_with_them() -> None:
    def update(grads: Any, state: Any, params: Any) -> Any:
        steps = jax.tree.map(lambda grad, old, now: -0.05 * grad + 0.5 * (now - old), grads, state["before"], params)
        return steps, {"before": params, "twice": grads, "gradients": grads}

    def init(params: Any) -> Any:
        return {"before": params, "twice": params, "gradients": params}

    transformation = optax.GradientTransformation(init, cast("Any", update))
    model = Net().init(0)
    expected = by_optax(transformation, weights(model), 10)
    optimizer = optim.OptaxAdaptor(transformation)
    model = run(run(model, optimizer, 3), optimizer, 7, compiled=True)
    for path, value in expected.items():
        np.testing.assert_allclose(weights(model)[path], value, rtol=1e-4, atol=1e-5)


def test_one_optimizer_for_two_models_of_a_program() -> None:
    step = px.compile(train)
    optimizer = optim.OptaxAdaptor(optax.adam(1e-2))
    for seed in (0, 1):
        model = step(Net().init(seed), optimizer, 1.0)
        expected = train(Net().init(seed), optim.OptaxAdaptor(optax.adam(1e-2)), 1.0)
        if seed == 0:
            for path, value in weights(expected).items():
                np.testing.assert_allclose(weights(model)[path], value, rtol=1e-5, atol=1e-6)
    assert repr(optimizer) == "OptaxAdaptor(8 states)"
    assert optimizer.states[ParamId("shared")]["shared"]["0.count"].item() == 2


def test_containers_of_parameters_are_not_supported() -> None:
    with pytest.raises(AttributeError) as error:
        train(Net().init(0), optim.OptaxAdaptor(cast("Any", optax.lookahead(optax.sgd(0.1), 5, 0.5))), 1.0)
    assert any("whose trees are dicts by path" in note for note in error.value.__notes__)


def test_nothing_to_step() -> None:
    model, optimizer = Net().init(0), optim.OptaxAdaptor(optax.adam(1e-2))
    after = optimizer.step(1.0, model, optim.GradientsParams({}))
    assert after is not model and not optimizer.states
    assert all(np.array_equal(value, weights(after)[path]) for path, value in weights(model).items())


# --- bad input


@pytest.mark.parametrize("backend", [NumPy(), Torch()], ids=repr)
def test_other_backends(backend: Backend) -> None:
    model = Net(Autodiff(backend).device()).init(0)
    with pytest.raises(OptimizerError, match=r"body\.weight: the parameter is on .*move the module there"):
        train(model, optim.OptaxAdaptor(optax.sgd(0.1)), 1.0)


@pytest.mark.parametrize("what", [optax.adam, None, 0.1, optim.AdamConfig()], ids=["function", "None", "number", "own"])
def test_what_is_no_transformation(what: Any) -> None:
    with pytest.raises(OptimizerError, match="takes a transformation with init and update"):
        optim.OptaxAdaptor(what)


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")], ids=str)
def test_bad_rates(lr: float) -> None:
    with pytest.raises(OptimizerError, match="learning rate must be a finite number of at least zero"):
        train(Net().init(0), optim.OptaxAdaptor(optax.sgd(0.1)), lr)


@pytest.mark.parametrize("lr", [{"*": 0.1}, px.tensor(0.1)], ids=["groups", "tensor"])
def test_rates_of_other_types(lr: Any) -> None:
    with pytest.raises(OptimizerError, match=r"one learning rate, a number.*multi_transform"):
        train(Net().init(0), optim.OptaxAdaptor(optax.sgd(0.1)), lr)


def test_gradients_that_do_not_fit() -> None:
    model, optimizer = Net().init(0), optim.OptaxAdaptor(optax.adam(0.1))
    _, other = px.value_and_grad(loss_of)(Net().init(1))
    with pytest.raises(OptimizerError, match=r"none of the 4 gradients is of a parameter of this Net.*body\.weight"):
        optimizer.step(1.0, model, other)
    for wrong in (px.ones((7,), device=Jax()), px.arange(3, device=Jax())):
        with pytest.raises(OptimizerError, match=r"body\.bias: the gradient is .* the parameter Float of shape \(3,\)"):
            optimizer.step(1.0, model, optim.GradientsParams({model.body.params()[1].id: wrong}))
    assert not optimizer.states


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda grads, state, params: (None, state), "a dict by path, got NoneType"),
        (lambda grads, state, params: ({}, state), "of the structure of the gradients"),
        (
            lambda grads, state, params: ({path: jnp.ones(9) for path in grads}, state),
            r"body\.weight: the update of the transformation is of shape \(9,\)",
        ),
        (lambda grads, state, params: (grads, {"other": 1}), "a state of another structure than init"),
    ],
    ids=["none", "empty", "shape", "structure"],
)
def test_transformations_that_go_wrong(update: Any, message: str) -> None:
    optimizer = optim.OptaxAdaptor(optax.GradientTransformation(lambda params: {"count": 0}, update))
    with pytest.raises(OptimizerError, match=message):
        train(Net().init(0), optimizer, 1.0)
    assert not optimizer.states


@pytest.mark.parametrize("name", ["init", "update"])
def test_an_error_of_the_transformation_says_where(name: str) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no")

    parts = {"init": lambda params: (), "update": lambda grads, state, params: (grads, state), name: fail}
    with pytest.raises(RuntimeError) as error:
        train(Net().init(0), optim.OptaxAdaptor(optax.GradientTransformation(**parts)), 1.0)
    assert any(f"in the {name} of the transformation" in note for note in error.value.__notes__)


def test_records_of_other_optimizers() -> None:
    optimizer = optim.OptaxAdaptor(optax.adam(1e-2))
    model = run(Net().init(0), optimizer, 1)
    before = dict(optimizer.states)
    for config in (optim.AdamConfig(), optim.SgdConfig(momentum=0.9), optim.SgdConfig()):
        other = config.init()
        run(model, other, 1)
        with pytest.raises(RecordError, match="not one of OptaxAdaptor"):
            optimizer.load_record(other.into_record())
    with pytest.raises(RecordError, match="holds no optimizer state"):
        optimizer.load_record(model.into_record())
    assert optimizer.states == before


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_records_of_other_transformations(compiled: bool) -> None:
    optimizer = optim.OptaxAdaptor(optax.sgd(0.1, momentum=0.9))
    model = run(Net().init(0), optimizer, 1)
    resumed = optim.OptaxAdaptor(optax.adam(1e-2))
    resumed.load_record(optimizer.into_record())
    with pytest.raises(
        RecordError,
        match=r"not one of this transformation.*body\.weight: expected 0\.mu, 0\.nu, found 0\.trace.*new OptaxAdaptor",
    ) as error:
        run(model, resumed, 1, compiled)
    assert "\n" not in str(error.value)
    wrong = optim.OptaxAdaptor(optax.sgd(0.1, momentum=0.9))
    other = Net(hidden=5).init(0)
    other.body.weight.set_id(model.body.weight.id)
    wrong.load_record(run_record(other))
    with pytest.raises(RecordError, match=r"body\.weight: 0\.trace is of shape \(4, 5\), not \(4, 3\)"):
        run(model, wrong, 1, compiled)


def run_record(model: Any) -> Any:
    optimizer = optim.OptaxAdaptor(optax.sgd(0.1, momentum=0.9))
    run(model, optimizer, 1)
    return optimizer.into_record()


def test_a_damaged_record() -> None:
    optimizer = optim.OptaxAdaptor(optax.adam(1e-2))
    run(Net().init(0), optimizer, 1)
    recorder = SafetensorsRecorder(precision=FULL)
    record = recorder.from_bytes(recorder.to_bytes(optimizer.into_record()))
    assert optimizer.states.pop(ParamId("shared"))
    with pytest.raises(RecordError, match="has a part `shared`"):
        optim.OptaxAdaptor(optax.adam(1e-2)).load_record(optimizer.into_record())
    optimizer.load_record(record)
    assert "shared" in optimizer.states
