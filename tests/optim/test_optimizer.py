"""What holds for every optimizer alike.

Serves: phlox/optim/config.py, phlox/optim/step/validation.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Float, Jax, NumPy, Torch
from phlox.errors import ConfigError
from phlox.optim.state.tree import Mastered
from phlox.record import FULL, SafetensorsRecorder
from tests.optim.problem import RATES, Weights, arrays, drifts, gradients, initial, run, step
from tests.optim.rules.test_rules import CASES, VARIANTS

ALL = {name: case.config for name, case in {**CASES, **VARIANTS}.items()}
PLAIN = {name: case.config for name, case in CASES.items()}
WIDE = NumPy(float="f64")


def equal(one: px.Module, other: px.Module) -> None:
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


def go_on(model: Weights, optimizer: optim.Optimizer, start: int, stop: int) -> Weights:
    for number in range(start, stop):
        model = step(model, optimizer, RATES[number], drifts(number))
    return model


@pytest.mark.parametrize("name", ALL)
def test_a_run_can_be_repeated_and_goes_on_from_a_record(name: str) -> None:
    optimizer = ALL[name].init()
    model = run(optimizer, NumPy(), steps=8)
    whole = run(ALL[name].init(), NumPy(), steps=16)
    equal(go_on(model, optimizer, 8, 16), whole)

    half, stopped = ALL[name].init(), SafetensorsRecorder(precision=FULL)
    model = run(half, NumPy(), steps=8)
    weights, record = (stopped.from_bytes(stopped.to_bytes(x.into_record())) for x in (model, half))
    again, resumed = Weights(initial(), NumPy().device()), ALL[name].init()
    for place, param in enumerate(model.weights):
        again.weights[place] = px.Param(px.zeros(param.shape, device=NumPy()), id=param.id)
    again.load_record(weights)
    resumed.load_record(record)
    equal(go_on(again, resumed, 8, 16), whole)


@pytest.mark.parametrize("name", ALL)
def test_a_parameter_without_a_gradient_stays(name: str) -> None:
    model, optimizer = Weights(initial(), WIDE.device()), ALL[name].init()
    stays = model.weights[0]
    named = {param.id: param.val() * 0.5 for param in model.weights if param is not stays}
    after = optimizer.step(0.1, model, optim.GradientsParams(named))
    changed = [not np.array_equal(a, b) for a, b in zip(arrays(model), arrays(after), strict=True)]
    assert changed == [False, True, True, True, True] and stays.id not in optimizer.states


@pytest.mark.parametrize("name", ALL)
def test_a_rate_of_zero_leaves_the_weights(name: str) -> None:
    """Whatever decays does so in proportion to the rate."""
    model, optimizer = Weights(initial(), WIDE.device()), ALL[name].init()
    after = model
    for number in range(3):
        after = step(after, optimizer, 0.0, drifts(number))
    equal(model, after)
    assert len(optimizer.states) == len(model.weights)


@pytest.mark.parametrize("name", [name for name in PLAIN if hasattr(PLAIN[name], "maximize")])
def test_to_maximize_is_to_minimize_the_negative(name: str) -> None:
    models = [Weights(initial(), WIDE.device()) for _ in range(2)]
    optimizers = [PLAIN[name].init(), PLAIN[name].replace(maximize=True).init()]
    for number in range(5):
        for place, sign in enumerate((1.0, -1.0)):
            model = models[place]
            grads = gradients([param.val() for param in model.weights], number)
            named = {param.id: grad * sign for param, grad in zip(model.weights, grads, strict=True)}
            models[place] = optimizers[place].step(0.02, model, optim.GradientsParams(named))
    equal(*models)


LEARNS = {"sgd": 0.1, "adadelta": 10.0, "adagrad": 0.3, "lion": 0.01, "adafactor": 0.1, "muon": 0.02}


@pytest.mark.covering(1)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_a_regression_is_learned(name: str, compiled: bool) -> None:
    device = Autodiff(Jax() if compiled else NumPy()).device()
    rng = np.random.default_rng(1)
    data, true = rng.normal(size=(32, 4)), rng.normal(size=(4, 2))
    x, y = (px.tensor(values, device=device, kind=Float) for values in (data, data @ true + 0.5))

    def train(model: nn.Linear, optimizer: Any, rate: float, x: px.Tensor, y: px.Tensor) -> Any:
        loss = nn.mse_loss(model(x), y)
        return optimizer.step(rate, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss.detach()

    one = px.compile(train, donate=("model", "optimizer")) if compiled else train
    model, optimizer, losses = nn.Linear(4, 2, device=device).init(0), PLAIN[name].init(), []
    for _ in range(100):
        model, loss = one(model, optimizer, LEARNS.get(name, 0.05), x, y)
        losses.append(loss.item())
    assert losses[-1] < 0.25 * losses[0], losses[::20]


@pytest.mark.parametrize("name", ["adamw", "nadam", "radam", "adan", "adafactor", "muon", "schedule-free"])
def test_several_steps_in_one_call_of_a_program(name: str) -> None:
    """Counts and numbers in states go round in a loop."""
    several = px.compile(step, steps=4, over=("lr", "slopes"))
    model, optimizer = Weights(initial(), Jax().device()), PLAIN[name].init()
    for start in (0, 4):
        steps = range(start, start + 4)
        slopes = [list(column) for column in zip(*map(drifts, steps), strict=True)]
        model = several(model, optimizer, [RATES[number] for number in steps], slopes)
    for got, expected in zip(arrays(model), arrays(run(PLAIN[name].init(), Jax(), steps=8)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", [NumPy(float="f16"), Torch(float="bf16"), Jax(float="bf16")], ids=repr)
@pytest.mark.parametrize("name", PLAIN)
def test_half_precision(name: str, backend: Backend) -> None:
    """All in half precision, without masters of the weights."""
    config = PLAIN[name]
    if hasattr(config, "epsilon") and config.to_dict()["epsilon"] is not None:
        config = config.replace(epsilon=1e-3)  # those of PyTorch are zeros of half precision
    model = run(config.init(master_weights=False), backend, backend.compiles, steps=6, tensors=4)
    expected = run(config.init(), WIDE, steps=6, tensors=4)
    for param, array in zip(model.weights, arrays(expected), strict=True):
        assert param.val().backend is backend
        np.testing.assert_allclose(param.val().numpy().astype(np.float32), array, atol=0.15)


BAD: list[tuple[type[optim.SimpleConfig], dict[str, Any], str]] = [
    *[
        (config, {name: bad}, rf"{name} must lie in \[0, 1\), got {bad}")
        for config in (
            optim.AdamConfig, optim.AdamWConfig, optim.AdaMaxConfig, optim.NAdamConfig, optim.RAdamConfig,
            optim.LionConfig, optim.AdanConfig, optim.LambConfig, optim.ScheduleFreeAdamWConfig,
        )
        for name, bad in (("beta_1", 1.0), ("beta_2", -0.1), ("beta_2", float("nan")))
    ],
    *[
        (type(config), {"weight_decay": bad}, f"weight_decay must be at least zero, got {bad}")
        for config in {type(config): config for config in PLAIN.values()}.values()
        for bad in (-0.1, float("nan"))
    ],
    (optim.AdanConfig, {"beta_3": 1.0}, "beta_3 must lie"),
    (optim.AdamConfig, {"epsilon": -1.0}, "epsilon must be at least zero"),
    (optim.SgdConfig, {"momentum": -0.5}, "momentum must be at least zero"),
    (optim.SgdConfig, {"nesterov": True}, "nesterov needs a momentum above zero and no dampening"),
    (optim.NAdamConfig, {"momentum_decay": -1.0}, "momentum_decay must be at least zero"),
    (optim.AdagradConfig, {"lr_decay": -1.0}, "lr_decay must be at least zero"),
    (optim.AdagradConfig, {"initial_accumulator": -1.0}, "initial_accumulator must be at least zero"),
    (optim.AdadeltaConfig, {"rho": 1.5}, r"rho must lie in \[0, 1\], got 1.5"),
    (optim.RmsPropConfig, {"alpha": -1.0}, "alpha must be at least zero"),
    (optim.AdafactorConfig, {"decay_rate": -0.8}, "decay_rate must be at least zero"),
    (optim.AdafactorConfig, {"clip_threshold": 0.5}, "clip_threshold must be at least one, got 0.5"),
    (optim.MuonConfig, {"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
    (optim.MuonConfig, {"iterations": 0}, "iterations must be at least one, got 0"),
    (optim.MuonConfig, {"scale": "none"}, "scale"),
    (optim.ScheduleFreeAdamWConfig, {"beta_1": 0.0}, "beta_1 must be greater than zero"),
    (optim.ScheduleFreeAdamWConfig, {"warmup_steps": -1}, "warmup_steps must be at least zero"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "options", "message"), BAD, ids=[f"{config.__name__}, {options}" for config, options, _ in BAD]
)
def test_bad_hyper_parameters(config: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        config(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ALL)
def test_configs_are_stored(name: str) -> None:
    assert type(ALL[name]).from_json(ALL[name].to_json()) == ALL[name]


def test_the_fallback_of_muon_and_its_rate() -> None:
    config = optim.MuonConfig(fallback=optim.SgdConfig(momentum=0.5), fallback_lr=0.25)
    assert optim.MuonConfig.from_json(config.to_json()).fallback == optim.SgdConfig(momentum=0.5)
    optimizer, model = config.init(), Weights(initial(), WIDE.device())
    after = step(model, optimizer, 0.1, drifts(0))
    other = step(model, optim.SgdConfig(momentum=0.5).init(), 0.1 * 0.25, drifts(0))
    same = [np.array_equal(a, b) for a, b in zip(arrays(after), arrays(other), strict=True)]
    assert same == [False, False, True, True, True]
    kinds = [optimizer.states[param.id]["fallback"] is None for param in model.weights]
    assert kinds == [True, True, False, False, False]


def test_muon_orthogonalizes() -> None:
    """Coefficients of the iteration that converges, and the singular values are ones."""
    config = optim.MuonConfig(coefficients=(1.875, -1.25, 0.375), iterations=40, weight_decay=0.0, nesterov=False)
    zero = Weights([np.zeros(x.shape) for x in initial()], WIDE.device())
    grads = optim.GradientsParams(
        {param.id: px.tensor(x, device=WIDE) for param, x in zip(zero.weights, initial(), strict=True)}
    )
    after = config.init().step(1.0, zero, grads)
    for number, gain in ((0, 1.0), (1, np.sqrt(5 / 2))):
        left, _, right = np.linalg.svd(initial()[number], full_matrices=False)
        np.testing.assert_allclose(arrays(after)[number], -gain * left @ right, rtol=1e-7, atol=1e-7)
    equal(config.init().step(1.0, zero, grads.map(lambda grad: grad * 0.0)), zero)


def test_the_states_of_adafactor_are_small() -> None:
    shapes = [
        {name: part.shape for name, part in state.items() if isinstance(part, px.Tensor)}
        for state in _states(optim.AdafactorConfig().init())
    ]
    assert shapes == [
        {"rows": (4, 1), "columns": (1, 3)}, {"rows": (2, 1), "columns": (1, 5)},
        {"rows": (2, 3, 1), "columns": (2, 1, 2)}, {"rows": (3,)}, {"rows": ()},
    ]  # fmt: skip


def _states(optimizer: optim.OptimizerAdaptor) -> list[Any]:
    model = run(optimizer, NumPy(), steps=1)
    return [optimizer.states[param.id] for param in model.weights]


def test_lamb_steps_from_zero_and_stays_without_gradients() -> None:
    zero = Weights([np.zeros(x.shape) for x in initial()], WIDE.device())
    grads = {param.id: px.ones(param.shape, device=WIDE) for param in zero.weights}
    after = optim.LambConfig().init().step(0.1, zero, optim.GradientsParams(grads))
    for array in arrays(after):
        np.testing.assert_allclose(array, -0.1, rtol=1e-5)
    none = optim.GradientsParams({id: grad * 0.0 for id, grad in grads.items()})
    equal(optim.LambConfig().init().step(0.1, zero, none), zero)


def test_centered_rmsprop_survives_constant_gradients() -> None:
    """Where the variance is zero but for rounding, which PyTorch takes the root of."""
    model, optimizer = Weights(initial(), NumPy().device()), optim.RmsPropConfig(alpha=0.5, centered=True).init()
    grads = optim.GradientsParams({param.id: px.full(param.shape, 0.1) for param in model.weights})
    for _ in range(60):
        model = optimizer.step(1e-9, model, grads)
    assert all(np.isfinite(array).all() for array in arrays(model))


def test_the_average_of_the_schedule_free_weights() -> None:
    """Of equal rates, it is the mean of all z; on any backend, and after resuming."""
    config = optim.ScheduleFreeAdamWConfig()
    optimizer, fast = config.init(), []
    model = Weights(initial(), WIDE.device())
    for number in range(6):
        model = step(model, optimizer, 0.05, drifts(number))
        fast.append([optimizer.states[param.id]["fast"].numpy() for param in model.weights])
    means = [np.mean(values, axis=0) for values in zip(*fast, strict=True)]
    averaged = optimizer.averaged(model)
    for got, mean, held in zip(arrays(averaged), means, arrays(model), strict=True):
        np.testing.assert_allclose(got, mean, rtol=1e-9)
        assert not np.array_equal(got, held)
    resumed = config.init()
    resumed.load_record(optimizer.into_record())
    tracked = model.to_device(Autodiff(Torch()))
    found = resumed.averaged(tracked)
    assert all(param.val().backend is Autodiff(Torch()) for param in found.params())
    for got, mean in zip(arrays(found), means, strict=True):
        np.testing.assert_allclose(got, mean, rtol=1e-5, atol=1e-6)
    equal(config.init().averaged(model), model)


@pytest.mark.parametrize("master_weights", [True, False])
def test_the_average_in_half_precision(master_weights: bool) -> None:
    optimizer = optim.ScheduleFreeAdamWConfig(epsilon=1e-3).init(master_weights=master_weights)
    model = run(optimizer, NumPy(float="bf16"), steps=5)
    wide = optim.ScheduleFreeAdamWConfig(epsilon=1e-3).init()
    expected = wide.averaged(run(wide, WIDE, steps=5))
    for got, array in zip(optimizer.averaged(model).params(), arrays(expected), strict=True):
        assert got.val().backend is NumPy(float="bf16")
        np.testing.assert_allclose(got.val().numpy().astype(np.float32), array, atol=0.02 if master_weights else 0.1)


def test_the_average_can_be_compiled() -> None:
    optimizer = optim.ScheduleFreeAdamWConfig().init()
    model = run(optimizer, Jax(), compiled=True, steps=3)
    averaged = px.compile(lambda model, optimizer: optimizer.averaged(model))(model, optimizer)
    for got, expected in zip(arrays(averaged), arrays(optimizer.averaged(model)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["muon", "schedule-free"])
def test_equal_optimizers_share_a_program(name: str) -> None:
    program = px.compile(step)
    for _ in range(2):
        model, optimizer = Weights(initial(), Jax().device()), PLAIN[name].init()
        program(program(model, optimizer, 0.1, drifts(0)), optimizer, 0.1, drifts(1))
    assert program.programs == 1


def test_the_average_leaves_groups_with_another_optimizer() -> None:
    groups = [optim.Group("weights.0", optimizer=optim.SgdConfig())]
    optimizer = optim.ScheduleFreeAdamWConfig().init(groups=groups)
    model = run(optimizer, WIDE, steps=3)
    same = [np.array_equal(a, b) for a, b in zip(arrays(model), arrays(optimizer.averaged(model)), strict=True)]
    assert same == [True, False, False, False, False]


def test_the_average_of_a_group_and_of_a_fallback() -> None:
    """Schedule-free as one group of another optimizer, and as what Muon leaves vectors to."""
    free = optim.ScheduleFreeAdamWConfig()
    group = optim.SgdConfig().init(groups=[optim.Group(optim.vectors, optimizer=free)])
    left = optim.MuonConfig(fallback=free).init()
    whole = free.init()
    model: Any = nn.Linear(3, 2).init(0, "numpy").train()
    x = px.Tensor.from_inner(px.tensor([[1.0, 2.0, -1.0]], device="numpy"))
    grads = optim.GradientsParams.from_grads(model(x).square().sum().backward(), model)
    for optimizer in (group, left):
        stepped, same = optimizer.step(0.1, model, grads), whole.step(0.1, model, grads)
        averaged, wanted = optimizer.averaged(stepped), whole.averaged(same)
        np.testing.assert_array_equal(averaged.bias.val().numpy(), wanted.bias.val().numpy())
        np.testing.assert_array_equal(averaged.weight.val().numpy(), stepped.weight.val().numpy())
        assert not np.array_equal(averaged.bias.val().numpy(), stepped.bias.val().numpy())
        whole = free.init()


LBFGS = {f"Lbfgs {search}": optim.LbfgsConfig(line_search=search, max_iter=3) for search in (None, "strong_wolfe")}
WIDENED: list[tuple[str, Any, Backend]] = [
    *[(name, config, one) for name, config in PLAIN.items() for one in (NumPy(), NumPy(float="bf16"))],
    *[(name, config, one) for name, config in LBFGS.items()
      for one in (NumPy(), WIDE, NumPy(float="f16"), Torch(), Torch(float="bf16"), Jax())],
]  # fmt: skip


def dtypes(tree: Any) -> list[str]:
    """The element types of the arrays of a tree of states, in which there are no scalars of NumPy."""
    if isinstance(tree, Mastered):
        tree = {"master": tree.master, "state": tree.state}
    if isinstance(tree, (dict, list, tuple)):
        return [one for part in (tree.values() if isinstance(tree, dict) else tree) for one in dtypes(part)]
    assert not isinstance(tree, (np.generic, np.ndarray)), tree
    return [str(tree.numpy().dtype)] if isinstance(tree, px.Tensor) else []


def bowl(model: Weights) -> px.Tensor:
    parts = [(param.val().square() - 1.0).square().sum() for param in model.weights]
    return sum(parts[1:], parts[0])


@pytest.mark.parametrize(("name", "config", "backend"), WIDENED, ids=[f"{one[0]}-{one[2]}" for one in WIDENED])
def test_scalars_of_numpy_widen_neither_weights_nor_states(name: str, config: Any, backend: Backend) -> None:
    newton, clipping = name in LBFGS, optim.GradientClipping.global_norm(np.float64(0.5))
    model = Weights(initial(), (Autodiff(backend) if newton else backend).device())
    optimizer = config.init() if newton else config.init(grad_clipping=clipping)
    before, found = dtypes([param.val() for param in model.weights]), list[set[str]]()
    for number, kind in enumerate([np.float64, np.float32, float, np.float64, np.float32]):
        rate: Any = kind(0.1)
        model = optimizer.minimize(rate, model, bowl) if newton else step(model, optimizer, rate, drifts(number))
        assert dtypes([param.val() for param in model.weights]) == before
        found.append(set(dtypes(optimizer.states)))
    assert all(one == found[0] for one in found) and found[0] <= {str(backend.full_precision().host_float_dtype)}, found
    recorder = SafetensorsRecorder(precision=FULL)
    recorder.from_bytes(recorder.to_bytes(optimizer.into_record()))
