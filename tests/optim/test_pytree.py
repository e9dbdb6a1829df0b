"""Optimizers and the helpers around them go through JAX's own transformations, without `phlox.compile`.

Serves: phlox/module/tree/aux_data.py, phlox/module/gradients.py

The reference is the same number of eager steps, which are compared with other libraries in tests/optim/rules.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax
from phlox.errors import CompileError, ModuleError, OptimizerError
from phlox.module.tree.aux_data import ids_of_call

DEVICE = Autodiff(Jax()).device()
X = px.random.normal((8, 2), device=DEVICE)
Y = X.sum(axis=-1, keepdims=True)
INPUTS, TARGETS = (jnp.asarray(tensor.numpy()) for tensor in (X, Y))
LR = 0.02


class Net(px.Module):
    def __init__(self, device: Any = DEVICE) -> None:
        self.first = nn.Linear(2, 2, device=device)
        self.last = nn.Linear(2, 1, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.last(self.first(x))


def net(seed: int = 0) -> Net:
    return Net().init(seed=seed)


def slope(model: Any) -> optim.GradientsParams:
    return px.grad(lambda model: nn.mse_loss(model(X), Y))(model)


def step(model: Any, optimizer: Any, lr: Any = LR) -> tuple[Any, Any]:
    return optimizer.step(lr, model, slope(model)), optimizer


def counted(fn: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """The function, and in a list the number of times that it was traced."""
    traces = [0]

    def traced(*arguments: Any) -> Any:
        traces[0] += 1
        return fn(*arguments)

    return traced, traces


def run(fn: Callable[..., Any], state: Any, times: int) -> Any:
    for _ in range(times):
        state = fn(*state)
    return state


def arrays(model: px.Module) -> list[np.ndarray[Any, Any]]:
    return [param.val().numpy().astype(np.float32) for param in model.params()]


def close(one: px.Module, other: px.Module, tolerance: float = 1e-6) -> None:
    for mine, its in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_allclose(mine, its, rtol=10 * tolerance, atol=tolerance)


def begun(optimizer: Any, seed: int = 0) -> tuple[Any, Any]:
    model = net(seed)
    optimizer.begin(model)
    return model, optimizer


def paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def adamw() -> Any:
    """With a group, and gradients that are clipped."""
    group = optim.Group("**.bias", weight_decay=0.0, lr_factor=0.5)
    return optim.AdamWConfig().init(groups=[group], grad_clipping=optim.GradientClipping.global_norm(1.0))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": optim.SgdConfig().init,
    "momentum": optim.SgdConfig(momentum=0.9, nesterov=True).init,
    "adam": optim.AdamConfig(amsgrad=True).init,
    "adamw, groups": adamw,
    "adamax": optim.AdaMaxConfig().init,
    "nadam": optim.NAdamConfig().init,
    "radam": optim.RAdamConfig().init,
    "adagrad": optim.AdagradConfig().init,
    "adadelta": optim.AdadeltaConfig().init,
    "rmsprop": optim.RmsPropConfig(momentum=0.9, centered=True).init,
    "lion": optim.LionConfig().init,
    "adan": optim.AdanConfig().init,
    "lamb": optim.LambConfig().init,
    "adafactor": optim.AdafactorConfig().init,
    "muon": optim.MuonConfig().init,
    "schedule-free": optim.ScheduleFreeAdamWConfig(warmup_steps=2).init,
    "skipped steps": lambda: optim.AdamConfig().init(skip_nonfinite=True),
    "optax": lambda: optim.OptaxAdaptor(
        optax.chain(optax.scale_by_schedule(lambda count: 1.0 / (1 + count)), optax.sgd(1.0, 0.9))
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_are_eager_steps(name: str) -> None:
    """Three steps in one program and an eager one are four eager ones, and the structure stays."""
    make = OPTIMIZERS[name]
    traced, traces = counted(step)
    state = begun(make())
    before = jax.tree.structure(state)
    state = run(jax.jit(traced), state, 3)
    assert traces == [1]
    assert jax.tree.structure(state) == before
    close(run(step, state, 1)[0], run(step, (net(), make()), 4)[0])


def test_it_is_optax_with_its_state() -> None:
    """An independent implementation, carried through the same program."""
    rule: Any = optax.adamw(LR, weight_decay=0.01)

    def raw(model: Any, state: Any) -> Any:
        grads = jax.grad(lambda model: jnp.square(model(INPUTS) - TARGETS).mean())(model)
        updates, state = rule.update(grads, state, model)
        return optax.apply_updates(model, updates), state

    model: Any = net()
    theirs, _ = run(jax.jit(raw), (model, rule.init(model)), 3)
    mine, _ = run(jax.jit(step), begun(optim.AdamWConfig().init()), 3)
    close(mine, theirs)


def test_scan_and_other_control_flow() -> None:
    expected = run(step, (net(), adamw()), 4)[0]
    state = begun(adamw())
    scanned: Any = jax.jit(
        lambda *s: jax.lax.scan(lambda s, _: (step(*s), None), s, None, length=2)[0], donate_argnums=(0, 1)
    )
    close(run(scanned, state, 2)[0], expected)
    looped: Any = jax.lax.while_loop(lambda s: s[2] < 4, lambda s: (*step(*s[:2]), s[2] + 1), (*begun(adamw()), 0))
    close(looped[0], expected)
    with pytest.raises(TypeError, match="carry"):  # states that are begun in a loop change its structure
        jax.lax.scan(lambda s, _: (step(*s), None), (net(), adamw()), None, length=2)


def test_an_ensemble_with_rates_of_its_own_and_its_members() -> None:
    rates = (0.01, 0.02, 0.04)
    members = [begun(adamw(), seed) for seed in range(3)]
    stacked: Any = jax.tree.map(lambda *x: jnp.stack(x), *members)
    traced, traces = counted(step)
    together = jax.jit(jax.vmap(traced))
    stacked = run(lambda *s: together(*s, jnp.array(rates)), stacked, 3)
    assert traces == [1]
    with pytest.raises(OptimizerError, match=r"counts of the optimizer is of shape \(3, 4\).*inside jax.vmap"):
        step(net(), stacked[1])
    for seed, rate in enumerate(rates):
        member = jax.tree.map(lambda x, seed=seed: x[seed], stacked)
        at_rate = partial(step, lr=rate)
        close(run(at_rate, member, 2)[0], run(at_rate, (net(seed), adamw()), 5)[0])


def test_a_second_model_shares_the_program_and_keeps_its_ids() -> None:
    traced, traces = counted(step)
    compiled, grads = jax.jit(traced), jax.jit(slope)
    nested = jax.jit(lambda model, optimizer: (optimizer.step(LR, model, grads(model)), optimizer))
    for seed in (0, 1):
        model, optimizer = begun(adamw(), seed)
        ids = [param.id for param in model.params()]
        assert list(grads(model)) == ids
        after = run(compiled, (model, optimizer), 2)
        assert list(after[1].states) == [param.id for param in after[0].params()] == ids
        after = run(nested, after, 2)
        close(run(step, after, 2)[0], run(step, (net(seed), adamw()), 6)[0])
    assert traces == [1]
    assert ids_of_call(tuple(ids)) == tuple(ids)


def test_whatever_comes_between() -> None:
    """Copies, files, host memory, other programs, and functions that know only one of the two."""
    expected = run(step, (net(), adamw()), 6)[0]
    model, optimizer = run(jax.jit(step), begun(adamw()), 3)
    loaded = adamw()
    loaded.load_record(optimizer.into_record())
    others = {
        "pickle": pickle.loads(pickle.dumps(optimizer)),  # noqa: S301
        "copy": copy.deepcopy(optimizer),
        "record": loaded,
        "host": jax.device_get(optimizer),
        "alone": jax.jit(lambda optimizer: optimizer)(optimizer),
        "map": jax.tree.map(lambda x: x, optimizer),
    }
    alone = jax.jit(lambda model: model)(model)
    for other in others.values():
        close(run(step, (alone, other), 3)[0], expected)
    program = px.compile(lambda model, optimizer: optimizer.step(LR, model, slope(model)))
    for _ in range(2):
        model = program(model, optimizer)
    close(jax.jit(step)(model, optimizer)[0], expected)


def test_the_tree() -> None:
    model, optimizer = begun(optim.AdamWConfig().init())
    definition = jax.tree.structure(optimizer)
    assert paths(optimizer)[:2] == [".states['first.bias']['moment_1']", ".states['first.bias']['moment_2']"]
    assert paths(optimizer)[-1] == ".counts" and len(paths(optimizer)) == 9
    assert "first.weight" in repr(definition)
    again = pickle.loads(pickle.dumps(definition))  # noqa: S301
    assert again == definition and hash(again) == hash(definition)
    assert jax.tree.structure(begun(optim.AdamWConfig().init(), 1)[1]) == definition
    changed = {
        "hyper-parameter": optim.AdamWConfig(beta_1=0.8).init(),
        "rule": optim.AdamConfig().init(),
        "groups": adamw(),
        "option": optim.AdamWConfig().init(skip_nonfinite=True),
    }
    for other in changed.values():
        assert jax.tree.structure(begun(other)[1]) != definition
    assert jax.tree.structure(begun(adamw())[1]) == jax.tree.structure(begun(adamw())[1])
    unpacked = jax.tree.unflatten(definition, jax.tree.leaves(optimizer))
    unpacked.skip_nonfinite = True  # a setting that is changed is another structure
    assert jax.tree.structure(unpacked) == jax.tree.structure(changed["option"])
    grads = slope(model)
    np.testing.assert_allclose(optax.tree.norm(grads), grads.norm().item(), rtol=1e-6)


def test_what_a_function_over_trees_puts_in_place_of_arrays() -> None:
    model, optimizer = begun(optim.AdamWConfig().init())
    shapes = jax.eval_shape(step, model, optimizer)[1]
    assert jax.tree.structure(shapes) == jax.tree.structure(optimizer)
    labels = jax.tree.map(lambda x: "label", optimizer)
    assert set(jax.tree.leaves(labels)) == {"label"}
    with pytest.raises(OptimizerError, match=r"states\['first.weight'\]\['moment_1'\].*gave it a str"):
        step(model, labels)
    wide = jax.tree.map(lambda x: jnp.zeros((5, *x.shape)) if x.dtype == np.float32 else x, optimizer)
    with pytest.raises(OptimizerError, match=r"first.*Float of shape \(2, 2\), found Float of shape \(5, 2, 2\)"):
        step(model, wide)


def closing_over(optimizer: Any, transform: Callable[..., Any]) -> None:
    transform(lambda model: optimizer.step(LR, model, slope(model)))(net())


def closing_over_compiled(optimizer: Any) -> None:
    compiled = px.compile(lambda model, optimizer: step(model, optimizer)[0])
    jax.jit(lambda model: compiled(model, optimizer))(net())


def in_a_loop(optimizer: Any) -> None:
    model = net()
    optimizer.begin(model)
    body = lambda optimizer: lambda model, _: (step(model, optimizer)[0], None)  # noqa: E731
    jax.jit(lambda model, optimizer: jax.lax.scan(body(optimizer), model, None, length=2))(model, optimizer)


LEAKS: dict[str, Callable[[], Any]] = {
    "jit": lambda: closing_over(adamw(), jax.jit),
    "begun": lambda: closing_over(begun(adamw())[1], jax.jit),
    "optax": lambda: closing_over(OPTIMIZERS["optax"](), jax.jit),
    "px.compile in jit": lambda: closing_over_compiled(adamw()),
    "a loop in jit": lambda: in_a_loop(adamw()),
}


@pytest.mark.parametrize("name", LEAKS)
def test_an_optimizer_from_outside_is_refused(name: str) -> None:
    with pytest.raises(OptimizerError, match="pass the optimizer to the function as an argument, and return it"):
        LEAKS[name]()


def test_an_optimizer_that_was_made_inside_is_not_from_outside() -> None:
    model = jax.jit(lambda model: run(step, (model, adamw()), 3)[0])(net())
    close(model, run(step, (net(), adamw()), 3)[0])
    closing_over(optim.SgdConfig().init(), jax.jit)  # it keeps nothing


def test_a_tree_knows_paths_and_an_eager_step_ids() -> None:
    model, optimizer = jax.jit(step)(*begun(adamw()))
    model.first, model.more = nn.Linear(2, 2, device=DEVICE).init(seed=5), model.first
    assert optimizer.report(model).kept == ["last.weight", "last.bias", "more.weight", "more.bias"]
    elsewhere = jax.jit(step)(*begun(adamw()))[1]
    with pytest.raises(OptimizerError, match=r"has the states of first.weight.*are they another model's\?"):
        step(nn.Linear(2, 1, device=DEVICE).init(seed=0), elsewhere)


def test_layers_that_were_moved() -> None:
    square = nn.Sequential([nn.Linear(2, 2, device=DEVICE), nn.Linear(2, 2, device=DEVICE)]).init(seed=0)
    optimizer = optim.LionConfig().init()
    optimizer.begin(square)
    square.layers.reverse()
    moving = jax.jit(lambda m, o: o.step(LR, m, px.grad(lambda m: m(X).square().mean())(m)))
    with pytest.raises(OptimizerError, match=r"`layers.0.weight` was at `layers.1.weight`.*optimizer.begin\(model\)"):
        moving(square, optimizer)
    optimizer.begin(square)
    moving(square, optimizer)
    other = nn.Sequential([nn.Linear(2, 2, device=DEVICE)]).init(seed=1)
    optimizer.begin(other)  # of which the paths are now
    assert ".states['layers.0.weight']['moment']" in paths(optimizer)
    moving(other, optimizer)


def test_frozen_parameters_keep_the_structure() -> None:
    model, optimizer = step(*begun(adamw()))
    frozen = model.freeze("first.**")
    (after, _), _ = jax.lax.scan(lambda s, _: (step(*s), None), (frozen, optimizer), None, length=2)
    np.testing.assert_array_equal(after.first.weight.val().numpy(), model.first.weight.val().numpy())


def test_master_weights() -> None:
    half = Autodiff(Jax(float="bf16"))
    x = X.to_device(half)

    def halved(model: Any, optimizer: Any) -> Any:
        grads = px.grad(lambda model: model(x).square().mean())(model)
        return optimizer.step(LR, model, grads), optimizer

    def start() -> Any:
        model = Net(half.device()).init(seed=0)
        optimizer = optim.SgdConfig(momentum=0.9).init()
        optimizer.begin(model)
        return model, optimizer

    state = run(jax.jit(halved), start(), 2)
    assert ".states['first.bias']['master']" in paths(state[1])
    close(run(halved, state, 1)[0], run(halved, start(), 3)[0], 4e-3)  # gradients of 8 bits


def test_averages_accumulators_and_scalers() -> None:
    """They are modules; all of them go through one program with the optimizer and its schedule."""

    def whole(model: Any, optimizer: Any, ema: Any, sums: Any, scaler: Any, schedule: Any) -> Any:
        grads = scaler.unscaled(px.grad(lambda model: scaler.scaled(nn.mse_loss(model(X), Y)))(model))
        sums.add(grads, model)
        sums.add(grads, model)
        model = optimizer.step(schedule.step(), model, sums.take(model))
        ema.update(model)
        return model, optimizer, ema, sums, scaler, schedule

    def start() -> Any:
        model, optimizer = begun(adamw())
        helpers = optim.Ema(model, decay=0.9, warm_up=True), optim.GradientsAccumulator(model)
        schedule = optim.WarmUpLr(optim.CosineAnnealingLr(0.1, num_iters=8), num_iters=2)
        return model, optimizer, *helpers, optim.LossScaler(interval=2, device=Jax()), schedule

    expected = run(whole, start(), 4)
    traced, traces = counted(whole)
    compiled = run(whole, run(jax.jit(traced), start(), 3), 1)
    scanned = jax.lax.scan(lambda s, _: (whole(*s), None), start(), None, length=4)[0]
    assert traces == [1]
    for found in (compiled, scanned):
        for number in (0, 2, 3, 4):
            close(found[number], expected[number])
        assert found[-1].taken == 4
    ema = optim.Ema(net())
    with pytest.raises(ModuleError, match="pass its module to the function as an argument"):
        jax.jit(ema.update)(net())


def test_lbfgs_is_a_tree_that_steps_outside() -> None:
    def loss(model: Any) -> Any:
        return nn.mse_loss(model(X), Y)

    optimizer = optim.LbfgsConfig(line_search="strong_wolfe", max_iter=2).init()
    model = optimizer.minimize(1.0, net(), loss)
    mapped: Any = jax.tree.map(lambda x: x, optimizer)
    close(mapped.minimize(1.0, model, loss), optimizer.minimize(1.0, model, loss))
    assert not mapped.outcome.restarted
    with pytest.raises(CompileError, match="outside of phlox.compile, phlox.vmap and JAX's transformations"):
        jax.jit(lambda model, optimizer: optimizer.minimize(1.0, model, loss))(model, optimizer)


class Counting(optim.Optimizer):
    """Of the user's own: what it keeps in a field is structure."""

    def __init__(self, note: Any = None) -> None:
        super().__init__()
        self.note = note

    def step(self, lr: Any, module: Any, grads: Any) -> Any:
        def move(path: str, param: px.Param) -> px.Param:
            grad = grads.get(param.id)
            total = self.states.get(param.id, 0.0 * grad) + grad
            self.states[param.id] = total
            return param.map(lambda value: value - total * lr)

        return module.map(move)


def test_an_optimizer_of_ones_own() -> None:
    state = run(jax.jit(step), (net(), Counting()), 2)
    close(state[0], run(step, (net(), Counting()), 2)[0])
    assert jax.tree.structure(Counting("a")) == jax.tree.structure(Counting("a")) != jax.tree.structure(Counting("b"))
    with pytest.raises(OptimizerError, match="Counting cannot be flattened as a PyTree: its field note is a"):
        jax.tree.leaves(Counting(bytearray(b"x")))
    leaky = Counting()
    jax.jit(lambda model: step(model, leaky)[0])(net())  # it writes to its states itself
    with pytest.raises(OptimizerError, match="is a tracer of a JAX transformation that has ended"):
        jax.tree.leaves(leaky)
