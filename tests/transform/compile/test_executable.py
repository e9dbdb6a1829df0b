"""`compile`: what is refused, what an exception leaves behind, and threads.

Serves: phlox/backend/tracing/lifetime_errors.py
"""

from __future__ import annotations

import pickle
import threading
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import CompileError, DonatedError, ModuleError, RandomnessError
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
    with pytest.raises(CompileError, match=r"other\['a'\]\[1\]: a bytearray can be neither"):
        run(x, {"a": [1, bytearray(b"x")]})
    with pytest.raises(
        CompileError, match=r"other: a schedule counts its steps itself; pass the rate, other\.step\(\)"
    ):
        run(x, optim.ConstantLr(0.1))
    tracked = px.ones((2,), device=TAPE).require_grad()
    with pytest.raises(CompileError, match=r"other: a tensor with a history on the tape.*\.detach\(\)"):
        run(x, tracked * 2.0)
    with pytest.raises(CompileError, match=r"other: it is on NumPy\(\), and other arguments on Jax\(\)"):
        run(x, px.ones((2,), device=NumPy()))
    with pytest.raises(CompileError, match="does not fit the 64-bit integers .* pass it as a float"):
        run(x, 2**70)
    layer: Any = nn.Linear(2, 2, device=Jax().device()).init(0)
    layer.table = np.ones(10_000)
    with pytest.raises(ModuleError, match=r"`table` is of type ndarray"):
        run(layer, x)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x, n, o: n * 2.0, "must be returned as a tensor"),
        (lambda x, n, o: {"a": [x.primitive]}, r"the result\['a'\]\[0\]: a compiled function cannot return a .*Tracer"),
        (lambda x, n, o: optim.SgdConfig().init(), "returns only optimizers that are its arguments"),
        (lambda x, n, o: object(), "cannot return a object"),
    ],
)
def test_bad_results(fn: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        px.compile(fn)(px.ones((2,), device=Jax()), 2.0, optim.SgdConfig().init())


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_an_optimizer_that_is_returned_is_the_argument(backend: Any) -> None:
    def taken(model: Any, optimizer: Any, x: px.Tensor) -> Any:
        grads = px.grad(lambda model: model(x).square().mean())(model)
        return {"model": optimizer.step(0.1, model, grads), "state": [optimizer]}

    x = px.ones((3, 2), device=backend)
    ends: list[Any] = []
    for take in (taken, px.compile(taken)):
        model, optimizer = nn.Linear(2, 1).init(0, device=backend).train(), optim.AdamConfig().init()
        for _ in range(3):
            result = take(model, optimizer, x)
            assert result["state"][0] is optimizer
            model = result["model"]
        ends.append(model.weight.val().numpy())
    np.testing.assert_allclose(*ends, rtol=1e-5)


def test_what_is_changed_inside_must_be_an_argument() -> None:
    model, optimizer = network(rate=0.0), optim.AdamWConfig().init()
    with pytest.raises(CompileError, match="an optimizer is used inside a compiled function, but is not one"):
        px.compile(lambda model, x: step(model, optimizer, 0.1, x)[0])(model, data())
    assert not optimizer.states
    with pytest.raises(ModuleError, match="pass its module to the function as an argument"):
        px.compile(lambda x: model(x))(data())

    def count(model: Any, x: px.Tensor) -> px.Tensor:
        model.steps = 1
        return x

    with pytest.raises(CompileError, match="changed a field of its argument, a Sequential"):
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


# --- what is used up


def donated() -> tuple[Any, Any, Any]:
    """A network that a step has used up, what it returned, and the optimizer."""
    model, optimizer = network(rate=0.0), optim.AdamWConfig().init()
    after, _ = px.compile(step, donate=("model", "optimizer"))(model, optimizer, 0.01, data())
    return model, after, optimizer


USES: dict[str, Any] = {
    "call": lambda model: model(data()),
    "numpy": lambda model: model.layers[0].weight.val().numpy(),
    "item": lambda model: model.layers[4].bias.val().item(),
    "index": lambda model: model.layers[0].weight.val()[0],
    "record": lambda model: px.record.SafetensorsRecorder().to_bytes(model.into_record()),
    "map": lambda model: model.map(lambda path, p: p.map(lambda t: t + 1.0)),
    "device": lambda model: model.to_device("numpy"),
    "valid": lambda model: model.valid()(data().inner()),
    "pickle": lambda model: pickle.dumps(model),
    "step": lambda model: step(model, optim.AdamWConfig().init(), 0.1, data()),
    "compiled": lambda model: px.compile(lambda model, x: model(x))(model, data()),
    "concat": lambda model: px.concat([model.layers[0].bias.val(), model.layers[0].bias.val()]),
}


@pytest.mark.parametrize("name", USES)
def test_what_is_donated_cannot_be_used_again(name: str) -> None:
    model, after, _ = donated()
    expected = r"donated to an earlier call of step, as its argument model, and is used up; use what that call returned"
    with pytest.raises(DonatedError, match=expected):
        USES[name](model)
    if name != "device":
        USES[name](after)


def test_what_is_donated_can_be_printed() -> None:
    model, after, optimizer = donated()
    assert "used up" in repr(model) and "[4, 8]" in repr(model) and model.num_params() == 57
    assert "used up" in repr(model.layers[0].weight) and "donated" in repr(model.layers[0].weight.val())
    assert "used up" not in repr(after)
    step(after, optimizer, 0.01, data())  # the optimizer has gone on


def test_a_donated_tensor() -> None:
    add = px.compile(lambda a, b: a + b, donate=("a",))
    one, two = px.ones((2,), device=Jax()), px.ones((2,), device=Jax())
    add(one, two)
    with pytest.raises(
        DonatedError, match=r"mul: a tensor was donated to an earlier call of .*<lambda>, as its argument a,"
    ):
        _ = one * 2.0
    with pytest.raises(DonatedError, match="add: a tensor was donated"):
        _ = two + one
    view = px.ones((3,), device=Jax())
    kept = view.detach()
    px.compile(lambda a: a + 1.0, donate=("a",))(view)
    with pytest.raises(DonatedError, match="sum: a tensor was donated .* as its argument a"):
        kept.sum()


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_one_array_may_be_donated_in_two_places(backend: Any) -> None:
    for names in (("a",), ("b",), ("a", "b")):
        run = px.compile(lambda a, b: (a + b * 2.0, a - b), donate=names)
        for _ in range(3):  # the later calls are read in a shorter way
            x = px.ones((2,), device=backend)
            assert [one.tolist() for one in run(x, x)] == [[3.0, 3.0], [0.0, 0.0]]
            if len(names) == 1:
                assert x.tolist() == [1.0, 1.0]  # the other place keeps it
        y, z = px.ones((2,), device=backend), px.full((2,), 5.0, device=backend)
        assert run(y, z)[1].tolist() == [-4.0, -4.0]
    pairs, x = px.compile(lambda pair: (pair[0] + 1.0, pair[1] + 2.0), donate=("pair",)), px.ones((2,), device=backend)
    assert [one.tolist() for one in pairs([x, x])] == [[2.0, 2.0], [3.0, 3.0]]


def test_tied_parameters_are_donated_once() -> None:
    tied = nn.Linear(2, 2, bias=False, device=Jax().device()).init(0)
    again = px.compile(lambda model: model.map(lambda path, p: p.map(lambda t: t * 2.0)), donate=("model",))
    assert again(nn.Sequential([tied, tied])).num_params() == 4  # tied parameters are one array


# --- what escapes


def test_what_escapes_names_the_function() -> None:
    kept: list[Any] = []

    def leaking(model: Any, x: Any) -> Any:
        kept.extend([x * 2.0, model.layers[0].weight.val(), x.inner()])
        return model(x)

    px.compile(leaking)(network(), data())
    message = "made while compiling .*leaking, which has ended, and has no value; return it from the function"
    for tensor in kept:
        for use in (
            lambda t: t + 1.0, lambda t: 1.0 - t, lambda t: t @ t.T, lambda t: t.sum(), lambda t: t[0],
            lambda t: t.numpy(), lambda t: t.tolist(), lambda t: px.concat([t, t]), lambda t: px.where(t > 0.0, t, t),
            px.functional.softmax, lambda t: t.reshape((-1,)), lambda t: t.to_device("numpy"),
        ):  # fmt: skip
            with pytest.raises(CompileError, match=message):
                use(tensor)
        assert "leaked from a transformation that has ended" in repr(tensor)
    with pytest.raises(CompileError, match=message):
        px.compile(lambda x: x + 1.0)(kept[2])
    with pytest.raises(
        CompileError, match="a tensor that it uses, and that is not among its arguments, was made inside"
    ):
        px.compile(lambda x: x + kept[2])(data(device=Jax()))


def test_a_field_of_an_object_that_is_no_argument() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model: Any = nn.Linear(4, 1, device=TAPE).init(0)
            self.step = px.compile(self._step)

        def _step(self, x: Any) -> Any:
            loss = self.model(x).mean()
            self.model = self.model.map(lambda path, p: p.map(lambda t: t * 0.5))
            return loss

    trainer = Trainer()
    trainer.step(data())
    with pytest.raises(CompileError, match=r"made while compiling .*Trainer\._step, which has ended"):
        trainer.model(data())


def test_a_field_that_was_set_is_named() -> None:
    def forget(model: Any, x: px.Tensor) -> px.Tensor:
        model.layers[2].rate = 0.25
        return x

    with pytest.raises(
        CompileError, match=r"changed a field of its argument, .* \(model\.layers\.2\.rate was 0\.5 and is 0\.25\)"
    ):
        px.compile(forget)(network(rate=0.5), data())
