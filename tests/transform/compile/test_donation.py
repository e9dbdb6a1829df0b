"""A compiled step that is interrupted, or fails, has happened or has not: with all that was given to it."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.errors import DonatedError, OptimizerError, OutOfMemoryError
from tests.interruption import interrupt, moments

pytestmark = [
    pytest.mark.usefixtures("hears_ctrl_c"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PLACES = {"jax": Autodiff(Jax()).device(), "torch": Autodiff(Torch()).device()}
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")


def copied(model: Any) -> Any:
    return model.map(lambda path, param: param.map(lambda x: x + 0.0))


class Trained:
    """A model with all that goes with it, and a stream that its dropout draws from."""

    def __init__(self, place: Any) -> None:
        layers = [
            nn.Linear(4, 8, device=place),
            nn.BatchNorm(8, device=place),
            nn.Dropout(0.5),
            nn.Linear(8, 1, device=place),
        ]
        self.model: Any = nn.Sequential(layers).init(0).train()
        self.optimizer = optim.AdamWConfig().init()
        self.average: Any = optim.Ema(copied(self.model), decay=0.5)
        self.stream = px.random.Stream((0, 7))
        self.x = px.tensor(X, device=place)

    def step(self, run: Any) -> None:
        with px.random.stream(self.stream):
            self.model, _ = run(self.model, self.optimizer, self.average, 0.01, self.x)

    def record(self) -> list[Any]:
        states = [value for state in self.optimizer.states.values() for _, value in sorted(state.items())]
        tensors = [param.val() for part in (self.model, self.average) for param in part.params()]
        found = [one.numpy() if isinstance(one, px.Tensor) else one for one in [*tensors, *states]]
        return [*found, self.stream.position]


def step(model: Any, optimizer: optim.Optimizer, average: Any, lr: float, x: px.Tensor) -> Any:
    loss = model(x).square().mean()
    model = optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model))
    average.update(model)
    return model, loss


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.every(4)
@pytest.mark.parametrize("donate", [("model", "optimizer"), ("model",), ("optimizer",), ()], ids="+".join)
@pytest.mark.parametrize("place", PLACES)
def test_an_interrupted_step_has_happened_or_has_not(place: str, donate: tuple[str, ...]) -> None:
    run = px.compile(step, donate=donate)

    def trained(steps: int) -> Trained:
        found = Trained(PLACES[place])
        for _ in range(steps):
            found.step(run)
        return found

    states = [trained(2).record(), trained(3).record()]
    last = trained(2)
    tried = moments(lambda: last.step(run))
    happened = 0
    for moment in range(1, tried + 1, 16 if place == "torch" else 11):
        one = trained(2)
        try:
            interrupt(lambda found=one: found.step(run), moment)
        except KeyboardInterrupt:
            pass
        found = one.record()
        which = [same(found, state) for state in states]
        assert any(which), moment
        happened += which[1]
        one.step(run)  # and it can go on
    assert happened or "model" not in donate or place == "torch"  # where arrays this small are not written over


class Kept(Exception):
    """What a handler of the user's raises."""


def test_a_handler_of_the_users_that_raises_something_else() -> None:
    run = px.compile(step, donate=("model", "optimizer"))
    one, two = Trained(PLACES["jax"]), Trained(PLACES["jax"])
    for each in (one, two, one, two):
        each.step(run)

    def handler(number: int, frame: Any) -> None:
        raise Kept

    signal.signal(signal.SIGINT, handler)
    whole, raised = moments(lambda: one.step(run)), 0
    for moment in range(whole // 2, whole, 13):
        try:
            interrupt(lambda: two.step(run), moment)
        except Kept:
            raised += 1
        assert signal.getsignal(signal.SIGINT) is handler
        position = two.record()[-1]
        while one.record()[-1] < position:
            one.step(run)
        assert same(two.record(), one.record())
    assert raised


def test_a_handler_that_raises_nothing_changes_nothing() -> None:
    run = px.compile(step, donate=("model", "optimizer"))
    one, two = Trained(PLACES["jax"]), Trained(PLACES["jax"])
    for each in (one, one, two):
        each.step(run)
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    interrupt(lambda: two.step(run), 60)
    assert seen == [signal.SIGINT]
    assert same(one.record(), two.record())


def test_several_steps_a_call_and_calls_on_another_thread() -> None:
    place = PLACES["jax"]

    def many(model: Any, optimizer: optim.Optimizer, x: px.Tensor) -> Any:
        loss = model(x).square().mean()
        return optimizer.step(0.01, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss

    run = px.compile(many, donate=("model", "optimizer"), steps=3)

    def trained(calls: int) -> tuple[Any, Any]:
        model, optimizer = nn.Linear(4, 1, device=place).init(0).train(), optim.AdamWConfig().init()
        for _ in range(calls):
            model, _ = run(model, optimizer, px.tensor(X, device=place))
        return model, optimizer

    expected = [trained(calls)[0].weight.val().numpy() for calls in (1, 2)]
    whole = moments(lambda: trained(2)) - moments(lambda: trained(1))
    for moment in range(1, whole, 13):
        model, optimizer = trained(1)
        try:
            model, _ = interrupt(lambda m=model, o=optimizer: run(m, o, px.tensor(X, device=place)), moment)
        except KeyboardInterrupt:
            pass
        times = {state["time"] for state in optimizer.states.values()}
        assert times in ({3}, {6})
        np.testing.assert_array_equal(model.weight.val().numpy(), expected[times == {6}])
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(trained(2)[0].weight.val().numpy()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], expected[1])


@pytest.mark.parametrize("place", PLACES)
def test_without_memory_what_was_not_lost_stays(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = px.compile(step)
    one = Trained(PLACES[place])
    one.step(run)
    before = one.record()
    program = next(iter(run._programs.values()))

    def full(*arguments: Any) -> Any:
        raise MemoryError("Unable to allocate 3.50 GiB for an array")

    with monkeypatch.context() as patch:
        patch.setattr(program, "run", full)
        with pytest.raises(OutOfMemoryError, match=r"^step on .*out of memory, 3.5 GiB were asked for; take less"):
            one.step(run)
    assert same(one.record(), before)
    one.step(run)


def test_without_memory_what_jax_has_lost_says_so() -> None:
    place = PLACES["jax"]
    run = px.compile(step, donate=("model", "optimizer"))
    one = Trained(place)
    one.step(run)
    given, program = one.model, next(iter(run._programs.values()))
    whole = program.run

    def full(donated: list[Any], kept: list[Any]) -> Any:
        whole(donated, kept)
        raise MemoryError

    program.run = full
    with pytest.raises(OutOfMemoryError, match="step on .*out of memory"):
        one.step(run)
    with pytest.raises(
        DonatedError, match=r"`layers.0.weight` was donated to a call of step that failed.*load a saved"
    ):
        given(one.x)
    with pytest.raises(OptimizerError, match="load a record"):
        _ = one.optimizer.states


def test_an_error_of_a_donating_program_is_not_taken_for_an_earlier_donation() -> None:
    place = Jax().device()

    def called(x: Any) -> Any:
        raise RuntimeError("of the callback")

    def fails(model: Any) -> Any:
        import jax

        w = model.weight.val()
        found = jax.pure_callback(called, jax.ShapeDtypeStruct(w.shape, w.primitive.dtype), w.primitive)
        return model.map(
            lambda path, param: param.map(lambda x: x + px.Tensor.from_primitive(found, x.backend, px.Float))
        )

    model = nn.Linear(4, 4, bias=False, device=place).init(0)
    with pytest.raises(Exception, match="of the callback"):
        px.compile(fails, donate="model")(model).weight.val().numpy()


@pytest.mark.full
def test_recording_can_be_interrupted() -> None:
    """It takes long, and nothing is lost."""
    place, pressed = PLACES["jax"], [True]

    def slow(model: Any, optimizer: optim.Optimizer, average: Any, lr: float, x: px.Tensor) -> Any:
        if pressed:
            pressed.clear()
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it did not wait")
        return step(model, optimizer, average, lr, x)

    run = px.compile(slow, donate=("model", "optimizer"))
    one, two = Trained(place), Trained(place)
    with pytest.raises(KeyboardInterrupt):
        one.step(run)
    one.step(run)
    two.step(px.compile(step, donate=("model", "optimizer")))
    assert same(one.record(), two.record())
