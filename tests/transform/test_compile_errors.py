"""`compile`: what is refused, what an exception leaves behind, and threads."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Jax, NumPy
from phlox.errors import CompileError, ModuleError, RandomnessError
from tests.transform.steps import TAPE, close, data, network, step


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x.sum().item(), lambda x, n: x if x.sum() > 0.0 else -x, lambda x, n: x if n > 1 else -x,
        lambda x, n: px.tensor(x.numpy(), device="jax"), lambda x, n: float(x.sum()), lambda x, n: x.tolist(),
        lambda x, n: [x for _ in range(n)],
    ],
)  # fmt: skip
def test_a_value_cannot_be_asked_for(fn: Any) -> None:
    with pytest.raises(CompileError, match="needed while the function is being compiled"):
        px.compile(fn)(px.ones((2,), device=Jax()), 2)


def test_bad_arguments() -> None:
    x = px.ones((2,), device=Jax())
    run = px.compile(lambda x, other: x)
    with pytest.raises(CompileError, match="other: a ndarray can be neither an array nor a constant"):
        run(x, np.ones(2))
    with pytest.raises(CompileError, match=r"other\['a'\]\[1\]: a bytearray can be neither"):
        run(x, {"a": [1, bytearray(b"x")]})
    with pytest.raises(
        CompileError, match=r"other: a schedule counts its steps outside; pass the rate, other\.step\(\)"
    ):
        run(x, optim.ConstantLr(0.1))
    tracked = px.ones((2,), device=TAPE).require_grad()
    with pytest.raises(CompileError, match=r"other: a tensor with a history on the tape.*\.detach\(\)"):
        run(x, tracked * 2.0)
    with pytest.raises(CompileError, match=r"other: it is on NumPy\(\), and other arguments on Jax\(\)"):
        run(x, px.ones((2,), device=NumPy()))
    with pytest.raises(CompileError, match="does not fit the 32-bit integers"):
        run(x, 2**40)
    layer: Any = nn.Linear(2, 2, device=Jax().device()).init(0)
    layer.table = np.ones(3)
    with pytest.raises(ModuleError, match=r"`table` is of type ndarray"):
        run(layer, x)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x, n, o: n * 2.0, "must be returned as a tensor"),
        (lambda x, n, o: {"a": [x.primitive]}, r"the result\['a'\]\[0\]: a compiled function cannot return a .*Tracer"),
        (lambda x, n, o: o, "an optimizer keeps its state by itself"),
        (lambda x, n, o: object(), "cannot return a object"),
    ],
)
def test_bad_results(fn: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        px.compile(fn)(px.ones((2,), device=Jax()), 2.0, optim.SgdConfig().init())


def test_what_is_changed_inside_must_be_an_argument() -> None:
    model, optimizer = network(rate=0.0), optim.AdamWConfig().init()
    with pytest.raises(CompileError, match="an optimizer is used inside a compiled function that it is no argument of"):
        px.compile(lambda model, x: step(model, optimizer, 0.1, x)[0])(model, data())
    assert not optimizer.states
    with pytest.raises(ModuleError, match="pass its module to the function as an argument"):
        px.compile(lambda x: model(x))(data())

    def count(model: Any, x: px.Tensor) -> px.Tensor:
        model.steps = 1
        return x

    with pytest.raises(CompileError, match="a field of the Sequential that is an argument was changed inside"):
        px.compile(count)(model, data())


def test_an_exception_inside_leaves_everything_as_it_was() -> None:
    model, optimizer = network(), optim.AdamWConfig().init()
    model, _ = step(model, optimizer, 0.01, data())
    before = {id: state["moment_1"].numpy().copy() for id, state in optimizer.states.items()}

    def fail(model: Any, optimizer: Any, x: px.Tensor) -> Any:
        step(model, optimizer, 0.01, x)
        raise RuntimeError("on purpose")

    with px.random.stream(1) as stream:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="on purpose"):
                px.compile(fail)(model, optimizer, data())
        assert stream.position == 0
    assert set(optimizer.states) == set(before)
    for id, state in optimizer.states.items():
        np.testing.assert_array_equal(state["moment_1"].numpy(), before[id])
        assert state["time"] == 1
    step(model, optimizer, 0.01, data())


def test_inside_raw_jit() -> None:
    plain = px.compile(lambda x: x * 2.0)
    drawing = px.compile(lambda x: nn.dropout(x, 0.5))
    x = px.ones((4,), device=Jax())
    np.testing.assert_allclose(jax.jit(lambda t: plain(t))(x).numpy(), 2 * np.ones(4))
    with px.random.stream(0) as stream:
        with pytest.raises(RandomnessError, match=r"compile the outer function with phlox\.compile"):
            jax.jit(lambda t: drawing(t))(x)
        assert stream.position == 0


def test_threads() -> None:
    run = px.compile(step)
    results: dict[int, Any] = {}

    def work(seed: int) -> None:
        model, optimizer = network(seed), optim.AdamWConfig().init()
        with px.random.stream(seed):
            for _ in range(5):
                model, _ = run(model, optimizer, 0.01, data())
        results[seed] = model

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        model, optimizer = network(seed), optim.AdamWConfig().init()
        with px.random.stream(seed):
            for _ in range(5):
                model, _ = step(model, optimizer, 0.01, data())
        close(results[seed], model)


def test_threads_on_one_stream_draw_different_numbers() -> None:
    run = px.compile(lambda x: px.random.uniform((4,), device=x.device) + x)
    drawn: list[tuple[float, ...]] = []
    x = px.zeros((4,), device=Jax())
    with px.random.stream(0) as stream:

        def work() -> None:
            with px.random.stream(stream):
                drawn.extend(tuple(run(x).tolist()) for _ in range(10))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(drawn)) == 40 and stream.position == 40
