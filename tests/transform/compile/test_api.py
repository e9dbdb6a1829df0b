"""`compile`: the same results, state changes and random draws as an eager call, from one program.

Serves: phlox/backend/jax/tracer.py
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import AutodiffError, CompileError
from tests.transform.steps import Counting, close, data, network, step, values


@pytest.mark.full
@pytest.mark.parametrize(
    "config",
    [
        optim.AdamWConfig(), optim.AdamConfig(weight_decay=0.1), optim.SgdConfig(), optim.SgdConfig(momentum=0.9),
        optim.SgdConfig(momentum=0.9, dampening=0.5), optim.SgdConfig(momentum=0.9, nesterov=True, weight_decay=0.1),
    ],
    ids=repr,
)  # fmt: skip
def test_a_training_step_means_the_same(config: Any) -> None:
    eager = compiled = before = network()
    eager_loss = loss = data()
    compiled = network()
    eager_optimizer, optimizer = config.init(), config.init()
    run = px.compile(step)
    with px.random.stream(5) as eager_stream:
        for number in range(6):
            eager, eager_loss = step(eager, eager_optimizer, 0.01 * (number + 1), data())
    with px.random.stream(5) as stream:
        for number in range(6):
            before = compiled
            compiled, loss = run(compiled, optimizer, 0.01 * (number + 1), data())
    np.testing.assert_allclose(loss.item(), eager_loss.item(), rtol=1e-4)
    close(compiled, eager)
    assert stream.position == eager_stream.position == 6
    # the running mean of the module that was passed in has changed, too
    assert before.layers[3].mean.val().numpy().any()
    assert [p.id for p in compiled.params()] == [p.id for p in before.params()]
    assert len(optimizer.states) == len(eager_optimizer.states)


def test_masks_are_those_of_an_eager_call() -> None:
    def draw(x: px.Tensor) -> tuple[px.Tensor, px.Tensor]:
        return nn.dropout(x, 0.5), px.random.uniform((3,), device=x.device)

    run = px.compile(draw)
    for shape in ((8, 4), (3,), (8, 4)):
        ones = px.ones(shape, device=Jax())
        with px.random.stream(9):
            px.random.normal((2,), device=Jax())  # somewhere in the middle
            expected = [t.numpy() for t in draw(ones)]
            after = px.random.uniform((2,)).numpy()
        with px.random.stream(9):
            px.random.normal((2,), device=Jax())
            got = [t.numpy() for t in run(ones)]
            np.testing.assert_array_equal(px.random.uniform((2,)).numpy(), after)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_array_equal(a, b)
    with px.random.stream(9):
        one, two = run(px.ones((50,), device=Jax()))[0].numpy(), run(px.ones((50,), device=Jax()))[0].numpy()
    assert (one != two).any()


def test_first_and_later_steps_numbers_and_models_share_one_program() -> None:
    counting = Counting(step)
    run = px.compile(lambda model, optimizer, lr, x: counting(model, optimizer, lr, x))
    models = [network(seed) for seed in range(2)]
    optimizers = [optim.AdamWConfig().init() for _ in range(2)]
    ids = [[p.id for p in model.params()] for model in models]
    expected = [network(seed) for seed in range(2)]
    expected_optimizers = [optim.AdamWConfig().init() for _ in range(2)]
    for number in range(4):
        for place in (0, 1):
            with px.random.stream(number):
                models[place], _ = run(models[place], optimizers[place], 0.01 / (number + 1), data())
            with px.random.stream(number):
                expected[place], _ = step(expected[place], expected_optimizers[place], 0.01 / (number + 1), data())
    assert counting.calls <= 2 and run.programs == 1
    for place in (0, 1):
        close(models[place], expected[place])
        assert [p.id for p in models[place].params()] == ids[place]
        assert set(optimizers[place].states) <= set(ids[place])
        assert all(state["time"] == 4 for state in optimizers[place].states.values())


def test_another_shape_is_recorded_anew_within_the_program() -> None:
    counting = Counting(lambda x, factor: (x * factor, x.shape[0] * 1.0))
    run = px.compile(counting)
    for rows in (2, 3, 2, 5):
        doubled, count = run(px.ones((rows, 2), device=Jax()), 2.0)
        assert doubled.shape == (rows, 2) and doubled.numpy().sum() == 4 * rows and count == float(rows)
    assert run.programs == 1 and counting.calls == 3


def test_a_constant_that_changes_makes_another_program() -> None:
    run = px.compile(lambda x, mode, flag: x * 2.0 if mode == "double" and flag else x)
    x = px.ones((2,), device=Jax())
    assert run(x, "double", True).tolist() == [2.0, 2.0]
    assert run(x, "single", True).tolist() == [1.0, 1.0]
    assert run(x, "double", False).tolist() == [1.0, 1.0]
    assert run.programs == 3


class Named(NamedTuple):
    x: Any
    rate: Any


def test_containers_keywords_and_defaults() -> None:
    def mix(batch: dict[str, Any], *more: Any, scale: float = 2.0, pair: Any = None, **rest: Any) -> Any:
        return {
            "sum": batch["x"] * scale + batch["inner"][0] * rest.get("extra", 1.0) + more[0].x * more[0].rate,
            "pair": Named(batch["x"], "constant"),
            "list": [batch["inner"][1], None, 3, pair],
        }

    run = px.compile(mix)
    x = px.ones((2,), device=Jax())
    arguments: tuple[Any, ...] = ({"x": x, "inner": (x * 3.0, x > 0.0)}, Named(x * 5.0, 0.5))
    for keywords in ({}, {"scale": 4.0}, {"extra": 2, "pair": "p"}, {"pair": None, "extra": np.float32(0.5)}):
        expected, got = mix(*arguments, **keywords), run(*arguments, **keywords)
        np.testing.assert_allclose(got["sum"].numpy(), expected["sum"].numpy())
        assert type(got["pair"]) is Named and got["pair"].rate == "constant"
        assert got["list"][0].kind is px.Bool and got["list"][1:] == expected["list"][1:]


def test_keywords_in_any_order_are_one_program() -> None:
    run = px.compile(lambda *, a, b: a - b)
    one, two = px.ones((2,), device=Jax()), px.zeros((2,), device=Jax())
    assert run(a=one, b=two).tolist() == run(b=two, a=one).tolist() == [1.0, 1.0]
    assert run.programs == 1


def test_modules_and_their_methods_are_arguments() -> None:
    class Twice(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 2, device=Jax().device())

        @px.compile
        def decorated(self, x: px.Tensor) -> px.Tensor:
            return self.layer(x)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.layer(x) * 2.0

    model, x = Twice().init(0), data(device=Jax())
    whole, method = px.compile(model), px.compile(model.__call__)
    for _ in range(2):
        expected = model(x).numpy()
        np.testing.assert_allclose(whole(x).numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(method(x).numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(model.decorated(x).numpy() * 2, expected, rtol=1e-6)
        model.layer.weight.set(model.layer.weight.val() * 3.0)  # not baked in
    assert whole.programs == 1


def test_what_a_partial_holds_is_an_argument() -> None:
    """As a constant of the program, the model would keep its old weights."""
    model, x = nn.Linear(2, 2, device=Jax().device()).init(0), px.ones((1, 2), device=Jax().device())

    def scaled(model: Any, x: Any, *, scale: float = 1.0) -> Any:
        return model(x) * scale

    runs = {
        "first": partial(scaled, model),
        "by keyword": partial(scaled, model=model, scale=2.0),
        "nested": partial(partial(scaled, model), scale=2.0),
        "a method": partial(model.__call__),
        "a container": partial(lambda models, x: models[0](x), [model]),
    }
    for name, function in runs.items():
        run = px.compile(function)
        for _ in range(3):
            np.testing.assert_allclose(run(x=x).numpy(), function(x=x).numpy(), rtol=1e-6, err_msg=name)
            model.weight.set(model.weight.val() * 2.0)
        assert run.traces == 1, name
    assert (px.compile(partial(scaled, model)).lower(x).flops or 0) > 0
    assert px.compile(partial(px.Tensor.topk, k=1))(x)[0].shape == (1, 1)  # which is a constant
    with pytest.raises(CompileError, match="give the others by keyword"):
        px.compile(partial(scaled, model, x))


def test_gradients_as_arguments_and_results() -> None:
    def gradients(model: Any, x: px.Tensor) -> Any:
        loss = model(x).square().mean()
        return loss, optim.GradientsParams.from_grads(loss.backward(), model)

    backward, update = px.compile(gradients), px.compile(lambda o, m, g: o.step(0.1, m, g))
    for seed in range(3):
        model, optimizer = network(seed, rate=0.0), optim.SgdConfig(momentum=0.9).init()
        _, grads = backward(model, data())
        assert set(grads) == {p.id for p in model.params() if p.trained}
        expected = optim.SgdConfig(momentum=0.9).init().step(0.1, model, grads)
        close(update(optimizer, model, grads), expected)
    assert backward.programs == update.programs == 1


def test_two_modules_with_the_same_ids_are_told_from_two_with_different_ones() -> None:
    def swap(a: Any, b: Any) -> Any:
        return b, a

    run = px.compile(swap)
    one, two = nn.Linear(2, 2, device=Jax().device()).init(0), nn.Linear(2, 2, device=Jax().device()).init(1)
    average = one.map(lambda path, p: p.map(lambda t: t * 2.0))
    first, second = run(one, average)
    assert first.weight.id == second.weight.id == one.weight.id
    first, second = run(one, two)
    assert first.weight.id == two.weight.id and second.weight.id == one.weight.id


def test_donation() -> None:
    run = px.compile(donate=("model", "optimizer"))(step)  # as a decorator with options
    model, optimizer = network(rate=0.0), optim.AdamWConfig().init()
    eager, eager_optimizer = network(rate=0.0), optim.AdamWConfig().init()
    first = model
    for _ in range(3):
        model, _ = run(model, optimizer, 0.01, data())
        eager, _ = step(eager, eager_optimizer, 0.01, data())
    close(model, eager)
    with pytest.raises(
        CompileError, match="model was donated to an earlier call of step, as its argument model, and is"
    ):
        run(first, optimizer, 0.01, data())
    model, _ = run(model, optimizer, 0.01, data())  # and nothing is broken by that
    step(model, optimizer, 0.01, data())
    assert optimizer.states[model.params()[0].id]["time"] == 5
    with pytest.raises(CompileError, match=r"no parameter 'modle' \(it has model, optimizer, lr, x\)"):
        px.compile(step, donate=("modle",))


def test_eager_and_compiled_steps_alternate() -> None:
    run = px.compile(step)
    model, optimizer = network(rate=0.0), optim.AdamWConfig().init()
    eager, eager_optimizer = network(rate=0.0), optim.AdamWConfig().init()
    for number in range(6):
        model, _ = (run if number % 2 else step)(model, optimizer, 0.01, data())
        eager, _ = step(eager, eager_optimizer, 0.01, data())
    close(model, eager)
    assert run.programs == 1


def test_models_and_optimizers_in_containers() -> None:
    def both(state: dict[str, Any], x: px.Tensor) -> dict[str, Any]:
        pairs = zip(state["models"], state["optimizers"], strict=True)
        return {"models": [step(model, optimizer, 0.01, x)[0] for model, optimizer in pairs]}

    run = px.compile(both, donate=("state",))
    models: list[Any] = [network(seed, rate=0.0) for seed in (0, 1)]
    optimizers = [optim.AdamWConfig().init(), optim.SgdConfig(momentum=0.9).init()]
    expected, others = (
        [network(seed, rate=0.0) for seed in (0, 1)],
        [optim.AdamWConfig().init(), optim.SgdConfig(momentum=0.9).init()],
    )
    for _ in range(3):
        models = run({"models": models, "optimizers": optimizers}, data())["models"]
        expected = both({"models": expected, "optimizers": others}, data())["models"]
    for got, want in zip(models, expected, strict=True):
        close(got, want)
    assert run.programs == 1


def test_frozen_parameters_have_no_state() -> None:
    run = px.compile(step)
    model = network(rate=0.0)
    for param in model.layers[0].params():
        param.set_trained(False)
    before, optimizer = values(model.layers[0]), optim.AdamWConfig().init()
    for _ in range(2):
        model, _ = run(model, optimizer, 0.1, data())
    for a, b in zip(values(model.layers[0]), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert set(optimizer.states) == {p.id for p in model.layers[4].params()} and run.programs == 1


def test_without_a_compiler_the_function_is_called_as_it_is() -> None:
    inner = NumPy()
    counting = Counting(lambda model, x: float(model(x).sum().item()))
    run = px.compile(counting)
    model, x = nn.Linear(4, 1, device=inner.device()).init(0), data(device=inner)
    assert run(model, x) == run(model, x) == model(x).sum().item()
    assert counting.calls == 2 and run.programs == 0
    assert px.compile(lambda n: n + 1)(2) == 3  # nor is there one for numbers alone


def test_nested_compiled_functions_are_inlined() -> None:
    inner = px.compile(lambda model, x: model(x).square().mean())
    outer = px.compile(lambda model, x: inner(model, x) * 2.0)
    model = network(rate=0.5)
    with px.random.stream(2):
        expected = model(data()).square().mean().item() * 2
    model = network(rate=0.5)
    with px.random.stream(2) as stream:
        np.testing.assert_allclose(outer(model, data()).item(), expected, rtol=1e-5)
        assert stream.position == 1
    assert inner.programs == 0 and outer.programs == 1


def test_a_user_optimizer_with_states_of_all_sorts() -> None:
    class Odd(optim.SimpleOptimizer):
        def init(self, tensor: Any) -> Any:
            return (px.zeros_like(tensor), [0, 1.5, None], {"name": "x", 3: (tensor * 0.0,)})

        def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
            kept, (count, real, nothing), named = state
            kept = kept * 0.5 + grad
            return tensor - kept * (lr * real), (kept, [count + 1, real * 0.5, nothing], {**named, 3: (kept,)})

    model, eager = network(rate=0.0), network(rate=0.0)
    optimizer, eager_optimizer = optim.OptimizerAdaptor(Odd()), optim.OptimizerAdaptor(Odd())
    run = px.compile(step, donate=("model", "optimizer"))
    for _ in range(4):
        model, _ = run(model, optimizer, 0.1, data())
        eager, _ = step(eager, eager_optimizer, 0.1, data())
    close(model, eager)
    state = optimizer.states[model.params()[0].id]
    assert isinstance(state, tuple) and state[1][0] == 4 and isinstance(state[1][0], int)
    assert state[1][1] == 1.5 * 0.5**4 and state[1][2] is None and state[2]["name"] == "x"
    assert run.programs == 1


@pytest.mark.full
def test_settings_of_an_optimizer_are_constants_of_the_program() -> None:
    class Scaled(optim.SimpleOptimizer):
        def __init__(self, factor: float, table: Any = None) -> None:
            self.factor, self.table = factor, table

        def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
            return tensor - grad * (lr * self.factor), state

    run = px.compile(step)

    def agree(optimizer: Any) -> None:
        close(run(network(rate=0.0), optimizer, 0.1, data())[0], step(network(rate=0.0), optimizer, 0.1, data())[0])

    optimizer: Any = None
    for factor in (1.0, 2.0, 1.0):
        optimizer = optim.OptimizerAdaptor(Scaled(factor))
        agree(optimizer)
    assert run.programs == 2  # equal settings share one
    optimizer.optimizer.factor = 3.0
    agree(optimizer)
    for table in (np.ones(3), np.zeros(3)):  # no hash: each its own
        unhashable: Any = optim.OptimizerAdaptor(Scaled(1.0, table))
        agree(unhashable)
        unhashable.optimizer.table = np.ones(2)
        agree(unhashable)


def test_a_module_that_a_call_returned_may_be_used_inside_the_next() -> None:
    code = """
import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax
device = Autodiff(Jax()).device()
layer = px.compile(lambda m: m.map(lambda path, p: p.map(lambda t: t * 2.0)))(nn.Linear(2, 2, device=device).init(0))
x = px.ones((2, 2), device=device)
assert px.compile(lambda x: layer(x))(x).tolist() == layer(x).tolist()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert not found.returncode, found.stderr


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_a_result_that_a_gradient_comes_back_to_says_that_it_has_no_history(backend: Any) -> None:
    device = Autodiff(backend).device()
    model, head = nn.Linear(3, 2, device=device).init(0), nn.Linear(2, 1, device=device).init(1)
    x = px.ones((4, 3), device=device)
    forward = px.compile(lambda model, x: model(x))
    hidden = forward(model, x)
    np.testing.assert_allclose(hidden.numpy(), model(x).numpy(), rtol=1e-6)
    loss = head(hidden).sum()
    with pytest.raises(AutodiffError, match=r"a result of .*, which keeps no history; call backward inside"):
        loss.backward()
    assert forward(nn.Linear(2, 2, device=device).init(2), hidden).shape == (4, 2)  # on it goes into other programs
    assert px.vmap(lambda h: h * 2.0)(hidden).shape == (4, 2)
    assert hidden.detach().is_require_grad() is False

    def step(model: Any, x: px.Tensor) -> Any:
        loss = model(x).square().mean()
        return loss, px.GradientsParams.from_grads(loss.backward(), model)

    loss, grads = px.compile(step)(model, x)
    assert not loss.is_require_grad() and len(grads) == 2  # walked back already


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_results_of_several_steps_have_no_history_either(backend: Any) -> None:
    device = Autodiff(backend).device()
    model = nn.Linear(3, 2, device=device).init(0)
    several = px.compile(lambda model, x: model(x), steps=2, over=("x",))
    found = several(model, px.ones((2, 4, 3), device=device))
    assert found.shape == (2, 4, 2)
    with pytest.raises(AutodiffError, match="keeps no history"):
        found.sum().backward()
