"""`compile(steps=n)`: one call that means n calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import CompileError, DonatedError
from phlox.optim.state.tree import flatten
from tests.transform.steps import close, data, network, step, values

N = 4
RNG = np.random.default_rng(0)
XS = RNG.normal(size=(N, 6, 4)).astype(np.float32)
RATES = [0.01 * (number + 1) for number in range(N)]
ENGINES = [NumPy(), Jax(), Torch()]


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
@pytest.mark.parametrize("config", [optim.AdamWConfig(), optim.SgdConfig(momentum=0.9)], ids=["adamw", "sgd"])
def test_several_steps_are_so_many_calls(backend: Backend, config: Any) -> None:
    device = Autodiff(backend).device()
    first, other = network(3, device), network(3, device)
    model, many = first, other
    optimizer, many_optimizer = config.init(), config.init()
    losses: list[float] = []
    with px.random.stream(7) as stream:
        for number in range(N):
            model, loss = step(model, optimizer, RATES[number], data(XS[number], device))
            losses.append(loss.item())
        after = px.random.uniform((2,)).numpy()
    run = px.compile(step, steps=N, over=("x", "lr"))
    with px.random.stream(7) as many_stream:
        many, many_losses = run(many, many_optimizer, RATES, data(XS, device))
        np.testing.assert_array_equal(px.random.uniform((2,)).numpy(), after)
    assert many_stream.position == stream.position == N + 1
    np.testing.assert_allclose(many_losses.numpy(), losses, rtol=1e-4)
    close(many, model)
    close(other, first)  # the running mean of what was passed in is as the first step left it
    assert [p.id for p in many.params()] == [p.id for p in other.params()]
    assert list(many_optimizer.states) == [p.id for p in other.params() if p.trained]
    for state, old in zip(many_optimizer.states.values(), optimizer.states.values(), strict=True):
        leaves: list[Any] = []
        others: list[Any] = []
        assert flatten(state, leaves) == flatten(old, others)
        for leaf, other_leaf in zip(leaves, others, strict=True):
            np.testing.assert_allclose(leaf, other_leaf, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_each_step_draws_its_own_numbers(backend: Backend) -> None:
    def draw(x: px.Tensor) -> tuple[px.Tensor, px.Tensor]:
        return nn.dropout(x, 0.5), px.random.uniform((3,), device=x.device)

    x = px.ones((8,), device=backend)
    with px.random.stream(2):
        expected = [draw(x) for _ in range(N)]
    with px.random.stream(2) as stream:
        got = px.compile(draw, steps=N)(x)
        assert stream.position == 2 * N
    for place in (0, 1):
        np.testing.assert_array_equal(got[place].numpy(), [one[place].numpy() for one in expected])


def test_many_calls_are_one_program_and_may_donate() -> None:
    run = px.compile(step, donate=("model", "optimizer"), steps=N, over=("lr", "x"))
    plain = px.compile(step)
    model, optimizer = network(rate=0.0), optim.AdamWConfig().init()
    eager, eager_optimizer = network(rate=0.0), optim.AdamWConfig().init()
    first, loss = model, data()
    for turn in range(3):
        model, losses = run(model, optimizer, np.array(RATES) / (turn + 1), x=data(XS))
        for number in range(N):
            eager, loss = plain(eager, eager_optimizer, RATES[number] / (turn + 1), data(XS[number]))
        np.testing.assert_allclose(losses[-1].item(), loss.item(), rtol=1e-4)
    close(model, eager)
    assert run.programs == run.traces == 1
    model, _ = step(model, optimizer, 0.01, data())  # an ordinary step goes on from there
    assert optimizer.states[model.params()[0].id]["time"] == 3 * N + 1
    with pytest.raises(DonatedError, match="donated to an earlier call of step, as its argument model,"):
        run(first, optimizer, RATES, data(XS))


@dataclass(frozen=True)
class Batch:
    x: Any
    more: dict[str, Any]


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_what_a_step_may_be_given_and_return(backend: Backend) -> None:
    def mix(batch: Batch, scale: Any, shift: float = 1.0, *, name: str, whole: Any) -> Any:
        y = batch.x * scale["a"] + batch.more["b"][0] * shift
        return {"y": y, "name": name, "batch": Batch(y + whole, {"b": None}), "list": [y.sum(), 3]}

    def at(n: int) -> Any:
        more = {"b": (px.tensor(XS[n, 1, :2], device=backend), "constant")}
        return mix(Batch(px.tensor(XS[n, 0, :2], device=backend), more), {"a": n}, 0.5 * n, name="n", whole=whole)

    whole = px.tensor([10.0, 20.0], device=backend)
    batch = Batch(px.tensor(XS[:, 0, :2], device=backend), {"b": (px.tensor(XS[:, 1, :2], device=backend), "constant")})
    run = px.compile(mix, steps=N, over=("batch", "scale", "shift"))
    got = run(batch, {"a": list(range(N))}, np.arange(N) * 0.5, name="n", whole=whole)
    expected = [at(n) for n in range(N)]
    np.testing.assert_allclose(got["y"].numpy(), [one["y"].numpy() for one in expected], rtol=1e-6)
    np.testing.assert_allclose(got["batch"].x.numpy(), [one["batch"].x.numpy() for one in expected], rtol=1e-6)
    np.testing.assert_allclose(got["list"][0].numpy(), [one["list"][0].item() for one in expected], rtol=1e-5)
    assert got["name"] == "n" and type(got["batch"]) is Batch and got["batch"].more == {"b": None}
    assert got["list"][1] == 3


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_a_module_that_is_not_returned_keeps_what_all_steps_set(backend: Backend) -> None:
    device = Autodiff(backend).device()
    model, other = network(device=device, rate=0.0), network(device=device, rate=0.0)
    for number in range(N):
        model(data(XS[number], device))
    result = px.compile(lambda model, x: model(x).mean(), steps=N, over="x")(other, data(XS, device))
    assert result.shape == (N,)
    close(other, model)


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_a_network_and_the_average_of_its_weights(backend: Backend) -> None:
    device = Autodiff(backend).device()

    def averaged(state: dict[str, Any], optimizer: Any, x: Any) -> Any:
        model, _ = step(state["model"], optimizer, 0.1, x)
        news = dict(model.named_params())
        mean = state["mean"].map(lambda path, p: p.map(lambda t: t * 0.9 + news[path].val().inner() * 0.1))
        return {"model": model, "mean": mean}

    def start() -> Any:
        model = network(device=device, rate=0.0)
        return {"model": model, "mean": model.valid()}

    state, other = start(), start()
    optimizers = [optim.SgdConfig().init() for _ in range(2)]
    for number in range(N):
        state = averaged(state, optimizers[0], data(XS[number], device))
    other = px.compile(averaged, steps=N, over=("x",))(other, optimizers[1], data(XS, device))
    for name in ("model", "mean"):
        close(other[name], state[name])
    assert np.abs(values(other["mean"])[0] - values(other["model"])[0]).max() > 1e-4


@pytest.mark.full
def test_within_another_compiled_function_they_are_inlined() -> None:
    inner = px.compile(step, steps=N, over=("lr", "x"))
    outer = px.compile(lambda model, optimizer, x: inner(model, optimizer, RATES, x))
    model, optimizer = network(), optim.AdamWConfig().init()
    other, other_optimizer = network(), optim.AdamWConfig().init()
    with px.random.stream(1):
        model, losses = inner(model, optimizer, RATES, data(XS))
    with px.random.stream(1):
        other, other_losses = outer(other, other_optimizer, data(XS))
    np.testing.assert_allclose(losses.numpy(), other_losses.numpy(), rtol=1e-4)
    close(other, model)
    assert inner.programs == 1


def test_checks_see_every_step() -> None:
    table = px.arange(3, device=Jax())
    run = px.compile(lambda i: table.take(i), steps=3, over="i")
    good, bad = px.tensor([[0], [1], [2]], device=Jax()), px.tensor([[0], [5], [2]], device=Jax())
    with px.debug.checks():
        assert run(good).tolist() == [[0], [1], [2]]
        with pytest.raises(IndexError, match="index 5 is out of range"):
            run(bad)


def test_half_precision_stays_so() -> None:
    backend = Jax(float="bf16")
    run = px.compile(lambda x, rate: x * rate, steps=2, over=("x", "rate"))
    result = run(px.ones((2, 3), device=backend), [0.5, 0.25])
    assert str(result.primitive.dtype) == "bfloat16" and result.tolist() == [[0.5] * 3, [0.25] * 3]


BAD: dict[str, tuple[Any, Any, str]] = {
    "first axis": (
        lambda x, lr: x, (data(XS[:3]), RATES),
        r"x: it must have an entry for each of the 4 steps on its first axis, and is of shape \(3, 6, 4\)",
    ),
    "rank 0": (lambda x, lr: x, (data(1.0), RATES), "x: .* for each of the 4 steps .*, and has no axis"),
    "inside": (
        lambda x, lr: x["a"][0], ({"a": [data(XS[:2])]}, RATES),
        r"x\['a'\]\[0\]: it must have an entry for each of the 4 steps .*\(2, 6, 4\)",
    ),
    "numbers": (lambda x, lr: x, (data(XS), RATES[:3]), "lr: it must have a number for each of the 4 steps, and has 3"),
    "one number": (lambda x, lr: x, (data(XS), 0.1), r"lr: it must be a list or an array of 4 numbers.*\[0.1\] \* 4"),
    "array": (lambda x, lr: x, (data(XS), XS[:3]), r"lr: .* for each of the 4 steps .*, and is of shape \(3, 6, 4\)"),
    "module": (lambda x, lr: x, (network(), RATES), "x: a Sequential is continued from step to step by itself"),
    "optimizer": (lambda x, lr: x, (optim.SgdConfig().init(), RATES), "x: a OptimizerAdaptor is continued"),
    "missing": (lambda x=None, lr=0.1: data(), (), "lr, x, named in `over`, must be passed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_what_a_loop_cannot_run_over(name: str, backend: Backend) -> None:
    fn, arguments, message = BAD[name]
    here = Autodiff(backend).device()
    moved = [a.to_device(here) if isinstance(a, (px.Tensor, px.Module)) else a for a in arguments]
    with pytest.raises(CompileError, match=message):
        px.compile(fn, steps=N, over=("x", "lr"))(*moved)


def test_bad_options() -> None:
    with pytest.raises(CompileError, match=r"over: step has no parameter 'y' \(it has model, optimizer, lr, x\)"):
        px.compile(step, steps=2, over=("y",))
    for wrong in (0, -1, 2.0, True, "3"):
        with pytest.raises(CompileError, match="an integer of at least 1"):
            px.compile(step, steps=cast("Any", wrong))
    with pytest.raises(CompileError, match="has a meaning only with steps="):
        px.compile(step, over=("x",), steps=None)


def grown(model: Any) -> Any:
    return model.map(lambda path, p: p.holding(px.concat([p.val(), p.val()])))


def renamed(model: Any) -> Any:
    model = model.map(lambda path, p: p.copy())
    model.layers[2].rate = 0.25
    return model


def test_what_goes_on_must_keep_its_form() -> None:
    model = network(rate=0.5)
    with pytest.raises(
        CompileError,
        match=r"the result becomes model in the next step and must have its structure; "
        r"model\.layers\.0\.weight was a Param, Float \(4, 8\) .* and is a Param, Float \(8, 8\)",
    ):
        px.compile(lambda model: grown(model), steps=2)(model)
    with pytest.raises(
        CompileError, match=r"the result\[0\] becomes model .*; model\.layers\.2\.rate was 0\.5 and is 0\.25"
    ):
        px.compile(lambda model: (renamed(model), 1), steps=2)(model)

    class Growing(optim.SimpleOptimizer):
        def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
            return tensor - grad * lr, (tensor,) if state is None else (*state, tensor)

    optimizer = optim.OptimizerAdaptor(Growing())
    with pytest.raises(
        CompileError,
        match=r"the state of an optimizer \(OptimizerAdaptor\) .*the state of model\.layers\.0\.weight was empty "
        r"and is 0 float \(4, 8\)",
    ):
        px.compile(step, steps=2)(model, optimizer, 0.1, data())
    assert not any(optimizer.states.values())


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_what_continues_what_must_be_clear(backend: Backend) -> None:
    model = network(device=Autodiff(backend).device())
    with pytest.raises(CompileError, match="the result has the parameters of a and b, and which continues which"):
        px.compile(lambda a, b: a.map(lambda path, p: p.copy()), steps=2)(model, model.map(lambda path, p: p.copy()))
    with pytest.raises(CompileError, match=r"the result\[0\] and the result\[1\] have the parameters of a"):
        px.compile(lambda a: (a, a.map(lambda path, p: p.copy())), steps=2)(model)
    twice = px.compile(lambda a: (a, a), steps=2)(model)  # one module, returned twice
    close(twice[0], twice[1])


def test_what_cannot_be_stacked() -> None:
    turns = iter(range(10))

    def run(fn: Any) -> Any:
        return px.compile(fn, steps=2)(px.ones((3,), device=NumPy()))

    with pytest.raises(CompileError, match=r"the result\['n'\] is 0 in step 0 and 1 in step 1, and cannot be stacked"):
        run(lambda x: {"n": next(turns)})
    with pytest.raises(CompileError, match=r"the result\[0\] is Float \(3,\) on NumPy\(\) in step 0 and .*\(4,\)"):
        run(lambda x: [px.ones((next(turns) + 1,), device=NumPy())])
    with pytest.raises(CompileError, match="cannot return a object"):
        px.compile(lambda x: object(), steps=2)(px.ones((3,), device=Jax()))
