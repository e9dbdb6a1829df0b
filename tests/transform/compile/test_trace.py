"""Which thing is which in a compiled function: one array in several places, optimizers that others look at, streams.

Serves: phlox/backend/tracing/scalar.py, phlox/backend/torch/compiler/passes/scalar_cse.py
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import CompileError, KindError, OptimizerError
from tests.transform.steps import close, step, values

ENGINES = [Jax(), Torch()]
both = pytest.mark.parametrize("backend", ENGINES, ids=repr)


@pytest.fixture(autouse=True)
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "none")


# --- one array in several places of the first call

Two = Callable[[Any, Any], Any]


def attention(a: px.Tensor, b: px.Tensor) -> px.Tensor:
    return nn.functional.attention(a[None, None], b[None, None], b[None, None])


def scanned(a: px.Tensor, b: px.Tensor) -> px.Tensor:
    return px.scan(lambda carry, x: (carry * 0.5 + x[0] - x[1], carry.sum()), a[0], (a, b))[0]


TWO: dict[str, Two] = {
    "difference": lambda a, b: a - b * 2.0,
    "attention": attention,
    "scan": scanned,
    "scan, carry": lambda a, b: px.scan(lambda carry, x: (carry - x * 3.0, carry.sum()), a[0], b)[0],
    "vmap": lambda a, b: px.vmap(lambda x, y: (x * 2.0 - y).sum())(a, b),
    "vmap, shared": lambda a, b: px.vmap(lambda x, y: x - y, in_axes=(0, None))(a, b),
    "gradient": lambda a, b: px.grad(lambda x: (x * x * b).sum())(a.to_device(Autodiff(a.backend).device())),
    "in a dict": lambda a, b: {"a": a + 1.0, "b": b},
}


def arrays(found: Any) -> list[Any]:
    return [one.numpy() for one in found.values()] if isinstance(found, dict) else [found.numpy()]


@both
@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("view", [False, True], ids=["the same", "a view"])
def test_positions_are_told_apart(backend: Backend, name: str, view: bool) -> None:
    rng = np.random.default_rng(0)
    one, other = (px.tensor(rng.normal(size=(4, 3)).astype(np.float32), device=backend) for _ in range(2))
    second = px.Tensor.from_primitive(one.primitive[:], backend, px.Float) if view else one
    run = px.compile(TWO[name])
    for a, b in ((one, second), (other, one), (one, other), (one, one)):
        for found, expected in zip(arrays(run(a, b)), arrays(TWO[name](a, b)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert run.traces == 1


@both
def test_with_steps(backend: Backend) -> None:
    def moved(state: nn.Linear, x: px.Tensor, y: px.Tensor) -> Any:
        return state.map(lambda path, param: param.map(lambda w: w + x.sum() - y.sum() * 2.0)), (x - y).sum()

    run = px.compile(moved, steps=2, over=("x", "y"))
    one, other = (px.tensor(rows, device=backend) for rows in ([[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]]))
    other = other.broadcast_to((2, 2)) + 0.0
    for a, b in ((one, one), (other, one), (one, other)):
        found, losses = run(nn.Linear(2, 2, device=backend.device(), initializer=nn.Zeros()), a, b)
        np.testing.assert_allclose(losses.numpy(), (a.numpy() - b.numpy()).sum(-1))
        np.testing.assert_allclose(found.weight.val().numpy(), a.numpy().sum() - 2 * b.numpy().sum())


@both
def test_untied_parameters_made_of_one_array(backend: Backend) -> None:
    device = Autodiff(backend).device()

    class Untied(px.Module):
        def __init__(self, weight: px.Tensor) -> None:
            self.into, self.out = px.Param(weight), px.Param(weight)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return (x @ self.into.val()).tanh() @ self.out.val().mT

    found: list[Any] = []
    for run in (step, px.compile(step, donate=("model", "optimizer"))):
        weight = px.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), device=device)
        model, optimizer = Untied(weight), optim.AdamConfig().init()
        for _ in range(3):
            model, _ = run(model, optimizer, 0.1, px.ones((2, 4), device=device))
        found.append(model)
    close(*found)
    assert np.abs(values(found[0])[0] - values(found[0])[1]).max() > 1e-3


@both
def test_a_student_that_is_a_copy_of_its_teacher(backend: Backend) -> None:
    device = Autodiff(backend).device()

    def distilled(student: Any, teacher: Any, optimizer: Any, x: px.Tensor) -> Any:
        loss = (student(x) - teacher(x) * 2.0).square().mean()
        return optimizer.step(0.1, student, optim.GradientsParams.from_grads(loss.backward(), student)), loss

    found: list[Any] = []
    for run in (distilled, px.compile(distilled, donate=("student", "optimizer"))):
        teacher = nn.Linear(3, 2, device=device).init(0).freeze()
        before = values(teacher)
        student = nn.Linear(3, 2, device=device)
        for mine, theirs in zip(student.params(), teacher.params(), strict=True):
            mine.set(theirs.val())
        optimizer, losses = optim.AdamConfig().init(), list[float]()
        for _ in range(3):
            student, loss = run(student, teacher, optimizer, px.ones((2, 3), device=device))
            losses.append(loss.item())
        found.append((student, losses))
        for a, b in zip(values(teacher), before, strict=True):
            np.testing.assert_array_equal(a, b)
    close(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)


class LookAhead(optim.SimpleOptimizer):
    """Begins with the parameter itself as a part of its state."""

    def init(self, tensor: Any) -> Any:
        return {"slow": tensor}

    def step(self, lr: float, tensor: Any, grad: Any, state: Any) -> Any:
        slow = state["slow"] * 0.5 + tensor * 0.5
        return slow - grad * lr, {"slow": slow}


def train(model: Any, ema: Any, accumulator: Any, optimizer: Any, x: px.Tensor) -> Any:
    loss = model(x).square().mean()
    accumulator.add(optim.GradientsParams.from_grads(loss.backward(), model), model)
    model = optimizer.step(0.1, model, accumulator.take(model))
    ema.update(model)
    return model, ema, accumulator, loss


def begun_with_the_models_arrays(backend: Backend, donate: tuple[str, ...], size: int) -> None:
    device = Autodiff(backend).device()
    x, run, found = px.ones((2, size), device=device), px.compile(train, donate=donate), list[Any]()
    for call in (train, run, run):  # a second model, whose call is read in a shorter way
        model = nn.Linear(size, size, device=device).init(0)
        ema, accumulator = optim.Ema(model, decay=0.9), optim.GradientsAccumulator(model)
        optimizer, losses = optim.OptimizerAdaptor(LookAhead()), list[float]()
        for _ in range(3):
            model, ema, accumulator, loss = call(model, ema, accumulator, optimizer, x)
            losses.append(loss.item())
        found.append((model, ema.average, losses))
    for model, average, losses in found[1:]:
        close(model, found[0][0])
        close(average, found[0][1])
        np.testing.assert_allclose(losses, found[0][2], rtol=1e-4)


@both
@pytest.mark.parametrize(
    "donate", [(), ("model",), ("model", "optimizer"), ("model", "ema", "accumulator", "optimizer")], ids=len
)
def test_what_begins_with_the_models_own_arrays(backend: Backend, donate: tuple[str, ...]) -> None:
    begun_with_the_models_arrays(backend, donate, 3)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
def test_what_begins_with_the_models_own_arrays_and_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")
    begun_with_the_models_arrays(Torch(), ("model", "ema", "accumulator", "optimizer"), 1100)


@both
def test_tied_parameters_stay_tied(backend: Backend) -> None:
    device = Autodiff(backend).device()
    run = px.compile(step, donate=("model", "optimizer"))
    tied = nn.Linear(3, 3, device=device).init(0)
    model, optimizer = nn.Sequential(tied, tied), optim.AdamConfig().init()
    for _ in range(2):
        model, _ = run(model, optimizer, 0.1, px.ones((2, 3), device=device))
    assert model.layers[0].weight is model.layers[1].weight and len(optimizer.states) == 2


@both
def test_an_optimizer_that_is_given_twice_is_one(backend: Backend) -> None:
    device = Autodiff(backend).device()

    def both_halves(models: Any, first: Any, second: Any, x: px.Tensor) -> Any:
        assert first is second
        return [step(models[0], first, 0.1, x)[0], step(models[1], second, 0.1, x)[0]]

    run, found = px.compile(both_halves, donate=("models", "first", "second")), list[Any]()
    for call in (both_halves, run):
        models: list[Any] = [nn.Linear(3, 2, device=device).init(seed) for seed in (0, 1)]
        optimizer = optim.SgdConfig(momentum=0.9).init()
        for _ in range(3):
            models = call(models, optimizer, optimizer, px.ones((2, 3), device=device))
        found.append((models, len(optimizer.states)))
    for mine, theirs in zip(found[1][0], found[0][0], strict=True):
        close(mine, theirs)
    assert found[1][1] == found[0][1] == 4


# --- what others see of an optimizer while a function is traced


def observed(optimizer: optim.Optimizer) -> list[Any]:
    """The states in host memory."""
    return [(id, state["time"], state["moment_1"].numpy().copy()) for id, state in optimizer.states.items()]


def same(one: list[Any], other: list[Any]) -> None:
    assert [(id, time) for id, time, _ in one] == [(id, time) for id, time, _ in other]
    for (*_, a), (*_, b) in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@both
@pytest.mark.parametrize("steps", [0, 2], ids=["no states", "states"])
@pytest.mark.parametrize("held", ["alone", "in a container"])
def test_others_see_states_as_they_were_until_the_call_is_over(backend: Backend, steps: int, held: str) -> None:
    device = Autodiff(backend).device()
    x, optimizer = px.ones((2, 3), device=device), optim.AdamWConfig().init()
    model: Any = nn.Linear(3, 2, device=device).init(0)
    for _ in range(steps):
        model, _ = step(model, optimizer, 0.1, x)
    before, seen = observed(optimizer), list[Any]()

    def watched(model: Any, optimizers: Any, x: px.Tensor) -> Any:
        result = step(model, optimizers[0] if held == "in a container" else optimizers, 0.1, x)
        thread = threading.Thread(target=lambda: seen.append(observed(optimizer)))
        thread.start()
        thread.join()
        return result

    run = px.compile(watched)
    run(model, [optimizer] if held == "in a container" else optimizer, x)
    assert len(seen) == 1
    same(seen[0], before)
    assert [time for _, time, _ in observed(optimizer)] == [steps + 1] * 2


@both
@pytest.mark.parametrize("steps", [0, 2], ids=["no states", "states"])
@pytest.mark.parametrize("donate", [(), ("model", "ema", "optimizer")], ids=["kept", "donated"])
def test_a_function_that_fails_while_it_is_traced_changes_nothing(
    backend: Backend, steps: int, donate: tuple[str, ...]
) -> None:
    device = Autodiff(backend).device()
    x, optimizer = px.ones((2, 3), device=device), optim.AdamWConfig().init()
    model: Any = nn.Sequential(nn.Linear(3, 2, device=device), nn.Dropout(0.5)).init(0)
    for _ in range(steps):
        model, _ = step(model, optimizer, 0.1, x)
    ema = optim.Ema(model)
    fields = {name: copy.copy(value) for name, value in vars(optimizer).items() if name != "_lock"}
    before, weights, average = observed(optimizer), values(model), values(ema)

    def failing(model: Any, ema: Any, optimizer: Any, x: px.Tensor) -> Any:
        model, _ = step(model, optimizer, 0.1, x)
        ema.update(model)
        optimizer.note = "changed"
        raise OSError("no")

    run = px.compile(failing, donate=donate)
    with px.random.stream(0) as stream:
        for _ in range(2):
            with pytest.raises(OSError, match="no"):
                run(model, ema, optimizer, x)
        assert stream.position == 0
    same(observed(optimizer), before)
    for name in ("_numbers", "_grouped", "_unproved", "_shapes"):
        assert vars(optimizer)[name] == fields[name]
    assert not hasattr(optimizer, "note")
    for now, then in zip([*values(model), *values(ema)], [*weights, *average], strict=True):
        np.testing.assert_array_equal(now, then)
    step(model, optimizer, 0.1, x)  # and goes on


@both
def test_what_a_step_changes_in_an_optimizer_beside_states_is_there_afterwards(backend: Backend) -> None:
    class Counting(optim.OptimizerAdaptor):
        def __init__(self) -> None:
            super().__init__(optim.AdamConfig().simple())
            self.traces, self.seen = 0, list[str]()

        def step(self, lr: Any, module: Any, grads: Any) -> Any:
            self.traces += 1
            self.seen.append(type(module).__name__)
            return super().step(lr, module, grads)

    device = Autodiff(backend).device()
    model, optimizer, run = nn.Linear(3, 2, device=device).init(0), Counting(), px.compile(step)
    for _ in range(2):
        model, _ = run(model, optimizer, 0.1, px.ones((2, 3), device=device))
    assert optimizer.traces == 1 and optimizer.seen == ["Linear"]
    copied = copy.copy(optimizer)
    step(model, copied, 0.1, px.ones((2, 3), device=device))
    assert [state["time"] for state in optimizer.states.values()] == [2, 2]


def test_an_optimizer_from_a_record_that_does_not_fit_is_still_refused() -> None:
    device = Autodiff(Jax()).device()
    x, optimizer = px.ones((2, 3), device=device), optim.SgdConfig(momentum=0.9).init()
    step(nn.Linear(3, 2, device=device).init(0), optimizer, 0.1, x)
    other = optim.AdamConfig().init(groups=[optim.Group("nothing*", lr_factor=0.1)])
    with pytest.raises(OptimizerError, match="nothing"):
        px.compile(step)(nn.Linear(3, 2, device=device).init(0), other, 0.1, x)
    assert not other.states


# --- how often a function is traced


def two_models(first: Any, second: Any, optimizers: Any, x: px.Tensor) -> Any:
    second, loss = step(second, optimizers[1], 0.1, first(x))
    return step(first, optimizers[0], 0.1, x)[0], second, loss


class Unused(px.Module):
    """One of its layers takes no part, and has no gradient."""

    def __init__(self, device: Any) -> None:
        self.used, self.unused = nn.Linear(3, 3, device=device), nn.Linear(3, 3, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.used(x)


@both
@pytest.mark.parametrize("config", [optim.AdamWConfig(), optim.SgdConfig(), optim.SgdConfig(momentum=0.9)], ids=repr)
@pytest.mark.parametrize("steps", [None, 2])
def test_a_first_call_runs_the_function_once(backend: Backend, config: Any, steps: int | None) -> None:
    device, calls = Autodiff(backend).device(), list[None]()

    def counted(model: Any, optimizer: Any, lr: float, x: px.Tensor) -> Any:
        calls.append(None)
        return step(model, optimizer, lr, x)

    run: Any = px.compile(counted, steps=steps)
    model, optimizer = nn.Linear(3, 2, device=device).init(0), config.init()
    for turn in range(3):
        model, _ = run(model, optimizer, 0.1, px.ones((2, 3), device=device))
        assert run.traces == 1 and run.programs == 1
        assert len(calls) == (steps or 1 if isinstance(backend, Torch) else 1), turn
    assert len(optimizer.states) == 2


@both
def test_models_with_an_optimizer_each_are_traced_once(backend: Backend) -> None:
    device, found = Autodiff(backend).device(), list[Any]()
    run = px.compile(two_models)
    for call in (two_models, run):
        first, second = (nn.Linear(3, 3, device=device).init(seed) for seed in range(2))
        optimizers = [optim.AdamConfig().init(), optim.SgdConfig(momentum=0.9).init()]
        for _ in range(3):
            first, second, _ = call(first, second, optimizers, px.ones((2, 3), device=device))
        found.append((first, second))
        assert [set(one.states) for one in optimizers] == [{p.id for p in m.params()} for m in (first, second)]
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1])
    assert run.traces == 1


@both
def test_parameters_that_take_no_step_cost_a_trace_that_is_counted(backend: Backend) -> None:
    device, calls = Autodiff(backend).device(), list[None]()

    def counted(model: Any, optimizer: Any, lr: float, x: px.Tensor) -> Any:
        calls.append(None)
        return step(model, optimizer, lr, x)

    run = px.compile(counted)
    for turn in range(3):
        model, optimizer = Unused(device).init(turn), optim.AdamWConfig().init()
        for _ in range(2):
            model, _ = run(model, optimizer, 0.1, px.ones((2, 3), device=device))
        assert set(optimizer.states) == {param.id for param in model.used.params()}
        assert (run.traces, run.programs) == (len(calls), 1)
    assert len(calls) == 2


# --- streams


@contextmanager
def meeting(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> Any:
    """Within this scope two runs of a program wait for each other, after its first call; gives what came of it."""
    met: list[bool] = []
    compile = type(backend).compile

    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        run, barrier, calls = compile(self, *arguments, **options), threading.Barrier(2), list[None]()

        def program(donated: Any, kept: Any) -> Any:
            calls.append(None)
            if len(calls) > 1:
                try:
                    barrier.wait(timeout=20)
                    met.append(True)
                except threading.BrokenBarrierError:
                    met.append(False)
            return run(donated, kept)

        return program

    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "compile", watched)
        yield met


@both
def test_programs_that_draw_run_side_by_side(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    x = px.ones((8,), device=backend)
    shared = px.random.Stream((1, 2))
    for streams in ([px.random.Stream((seed, 0)) for seed in range(2)], [shared, shared]):
        with meeting(monkeypatch, backend) as met:
            run = px.compile(lambda x: x + px.random.uniform((8,), device=x.device))
            with px.random.stream(9):
                run(x)
            start = {id(stream): stream.position for stream in streams}
            found: list[Any] = []

            def work(stream: px.random.Stream, run: Any = run, found: list[Any] = found) -> None:
                with px.random.stream(stream):
                    found.append(run(x).numpy())

            threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert met == [True, True]
        assert (found[0] != found[1]).any()  # no two draw from one position
        assert all(stream.position == start[id(stream)] + len(streams) // len(start) for stream in streams)


@both
def test_threads_that_call_a_new_function_on_one_stream_draw_what_differs(backend: Backend) -> None:
    run, found, stream = (
        px.compile(lambda x: x + px.random.uniform((8,), device=x.device)),
        [],
        px.random.Stream((3, 4)),
    )
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        with px.random.stream(stream):
            found.extend([run(px.zeros((n, 8), device=backend))[0].numpy() for n in (8, number + 1)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream.position == 8 and len({one.tobytes() for one in found}) == 8


@both
def test_a_call_that_fails_gives_its_positions_back(backend: Backend) -> None:
    def drawn(x: px.Tensor) -> px.Tensor:
        if x.shape[0] > 2:
            raise OSError("no")
        return x + px.random.uniform(x.shape, device=x.device) + px.random.uniform(x.shape, device=x.device)

    run = px.compile(drawn)
    with px.random.stream(5) as stream:
        run(px.ones((2,), device=backend))
        with pytest.raises(OSError, match="no"):
            run(px.ones((3,), device=backend))
        assert stream.position == 2


def test_reserved_positions() -> None:
    stream = px.random.Stream((1, 2), 10)
    first = stream.reserve(3)
    assert first.words.tolist() == [1, 2, 10] and stream.position == 13
    stream.settle(first, 5)
    assert stream.position == 15
    second = stream.reserve(4)
    stream.settle(second, 1)
    assert stream.position == 16
    third = stream.reserve(2)
    stream.take()
    stream.settle(third, 0)
    assert stream.position == 19  # somebody has drawn meanwhile: nothing is drawn twice
    fourth = stream.reserve(2)
    stream.restart((7, 7))
    stream.settle(fourth, 0)
    assert stream.position == 0


# --- numbers

FORMULAS: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "number": lambda x, r, s, n, m: x * r,
    "numbers with each other": lambda x, r, s, n, m: x * (r * s),
    "beyond 32 bits on the way": lambda x, r, s, n, m: x * (r * 1e200 * 1e-200),
    "quotient of integers": lambda x, r, s, n, m: x * (n / m),
    "whole quotient": lambda x, r, s, n, m: x * (-n // m),
    "remainder": lambda x, r, s, n, m: x * (-n % m),
    "power": lambda x, r, s, n, m: x * r**2,
    "power of numbers": lambda x, r, s, n, m: x * r**s,
    "power of integers": lambda x, r, s, n, m: x * 2**m,
    "square of an integer": lambda x, r, s, n, m: x * (n * n / 1e6),
    "large integers": lambda x, r, s, n, m: x * (n * 2**40 / 2**38),
    "comparison": lambda x, r, s, n, m: x * ((r < s) * 2.0 + (n == m)),
    "reflected": lambda x, r, s, n, m: (1 - r) - x,
    "tensor on the right": lambda x, r, s, n, m: (n * 0.1) - x,
    "absolute": lambda x, r, s, n, m: x * abs(-r) + -m,
    "of ints": lambda x, r, s, n, m: (x > 0.0).int() * m + n,
    "where": lambda x, r, s, n, m: px.where(x > 0.5, r, x),
    "maximum": lambda x, r, s, n, m: x.maximum(r),
    "clip": lambda x, r, s, n, m: x.clip(r, s + 1),
    "exponent": lambda x, r, s, n, m: x**r,
    "compared with a tensor": lambda x, r, s, n, m: (x < r).float(),
    "rounds to the tensor's": lambda x, r, s, n, m: (x * 0.0 + r <= r).float(),
    "lerp": lambda x, r, s, n, m: x.lerp(x * 2.0, r),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("values", [[0.3, 1.7], 0.7], ids=["axes", "no axes"])
@pytest.mark.parametrize(
    "backend",
    [engine(float=element) for engine in (Jax, Torch) for element in ("f32", "f64", "bf16", "f16")],
    ids=repr,
)
def test_numbers_compute_as_they_do_eagerly(backend: Backend, values: Any) -> None:
    def every(x: Any, r: Any, s: Any, n: Any, m: Any) -> Any:
        return {name: formula(x, r, s, n, m) for name, formula in FORMULAS.items()}

    run, x = px.compile(every), px.tensor(values, device=backend)
    for r, s, n, m in ((0.1, 1 / 3, 10007, 3), (0.7, 0.25, 30011, 5)):
        found, expected = run(x, r, s, n, m), every(x, r, s, n, m)
        for name, wanted in expected.items():
            assert found[name].primitive.dtype == wanted.primitive.dtype, name
            # At half precision PyTorch rounds numbers first in some kernels, and takes reciprocals for quotients.
            tolerance = {"f32": 2e-7, "f64": 1e-15}.get(backend.float_element, 2.0**-7)
            np.testing.assert_allclose(
                found[name].numpy().astype(np.float64),
                wanted.numpy().astype(np.float64),
                rtol=tolerance,
                atol=tolerance,
                err_msg=name,
            )
    assert run.traces == 1


@pytest.mark.parametrize("engine", [Jax, Torch])
def test_a_number_meets_each_tensor_at_its_own_precision(engine: Any) -> None:
    def met(a: px.Tensor, b: px.Tensor, r: float) -> Any:
        return a * r, b * r, b * (r * r)

    a, b = (px.tensor([0.3], device=engine(float=element)) for element in ("f32", "f64"))
    for found, wanted in zip(px.compile(met)(a, b, 0.1), met(a, b, 0.1), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())


@pytest.mark.parametrize("backend", [*ENGINES, NumPy()], ids=repr)
def test_integers_beyond_32_bits(backend: Backend) -> None:
    run, x = px.compile(lambda x, n: (x * n, x + n // 3)), px.tensor([1.0, 2.0], device=backend)
    for n in (2**40, -(2**62), 7):
        for found, wanted in zip(run(x, n), (np.array([1.0, 2.0]) * n, np.array([1.0, 2.0]) + n // 3), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)
    assert (x * 10**30).tolist() == pytest.approx([1e30, 2e30])


@both
def test_numbers_in_loops_and_in_each_step(backend: Backend) -> None:
    def scaled(x: px.Tensor, r: float) -> px.Tensor:
        return px.scan(lambda carry, one: (carry * (r * r), one * r), x[0], x)[0]

    x = px.tensor([[2.0], [3.0]], device=backend)
    np.testing.assert_allclose(px.compile(scaled)(x, 0.1).numpy(), 2.0 * np.float64(0.01) ** 2, rtol=1e-6)
    rates = [1e30, 3e20, 0.5]
    run: Any = px.compile(lambda x, r, n: x * (r * r * 1e-40) + n * n * n, steps=3, over=("r", "n"))
    found = run(px.ones((), device=backend), rates, [1, 2, 3_000])
    np.testing.assert_allclose(found.numpy(), [1e20 + 1, 9.0 + 8, 2.7e10], rtol=1e-6)


@pytest.mark.parametrize("backend", [*ENGINES, Jax(float="f64"), Torch(float="f64")], ids=repr)
def test_numbers_that_go_into_states_keep_programs_few(backend: Backend) -> None:
    class Greedy(optim.SimpleOptimizer):
        """Keeps the rate itself, and a number that it computes from it."""

        def init(self, tensor: Any) -> Any:
            return {"last": 0.0, "product": 1.0}

        def step(self, lr: float, tensor: Any, grad: Any, state: Any) -> Any:
            return tensor - grad * lr, {"last": lr, "product": state["product"] * (1.0 + lr)}

    device = Autodiff(backend).device()
    run, model = px.compile(step), nn.Linear(3, 2, device=device).init(0)
    optimizer = optim.OptimizerAdaptor(Greedy())
    for rate in (0.5, 0.25, 0.125):
        model, _ = run(model, optimizer, rate, px.ones((2, 3), device=device))
    state = next(iter(optimizer.states.values()))
    assert state["last"] == 0.125 and state["product"] == pytest.approx(1.5 * 1.25 * 1.125, rel=1e-6)
    assert run.traces == 1


@both
def test_a_number_as_a_tensor_and_what_needs_its_value(backend: Backend) -> None:
    x = px.ones((2,), device=backend)

    def made(x: px.Tensor, r: float, n: int) -> Any:
        return (
            px.tensor(r, device=x.device),
            px.tensor(n, device=x.device),
            np.float64(2.0) * r * x,
            x * (r * np.int32(3)),
        )

    found, wanted = px.compile(made)(x, 0.1, 7), made(x, 0.1, 7)
    for one, other in zip(found, wanted, strict=True):
        assert one.kind is other.kind and one.tolist() == other.tolist()
    for needs in (float, round, bool, lambda r: f"{r:.3f}", lambda r: [1, 2][r], lambda r: 1 if r > 0 else 2):
        with pytest.raises(CompileError, match="the value of a tensor or number is needed"):
            px.compile(lambda x, r, needs=needs: x * needs(r))(x, 1)
    with pytest.raises(KindError, match="Int tensors do not mix with the traced float argument"):
        px.compile(lambda x, r: (x > 0.0).int() * r)(x, 0.5)


@both
def test_a_number_that_escapes_is_refused(backend: Backend) -> None:
    kept, x = list[Any](), px.ones((2,), device=backend)
    px.compile(lambda x, r: (kept.append(r * 2.0), x * r)[1])(x, 0.5)
    for use in (lambda r: x * r, lambda r: r + 1.0, lambda r: float(r), lambda r: x.maximum(r)):
        with pytest.raises(CompileError, match="a number was made .* has ended, and has no value"):
            use(kept[0])
