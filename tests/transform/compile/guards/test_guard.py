"""Guards: what is equal, what is not, and what they say of a change."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import phlox as px
from benchmarks.guard.counting import count
from phlox.backend import Autodiff, Backend, Jax, Torch
from phlox.data import Loader
from phlox.errors import CompileError
from phlox.nn import Linear
from phlox.optim import SgdConfig
from phlox.train import LambdaCallback, Learner
from phlox.transform.compile.guards import guard_of, roots_of

COMPILERS = [Jax(), Torch()]
both = pytest.mark.parametrize("backend", COMPILERS, ids=repr)
VALUES = [0, 0.0, -0.0, False, None, "", b"", math.nan, 1, 1.0, True, "0", np.float32(0), np.float64(0), (0,), [0]]


def test_values_of_another_kind_or_sign_are_other_values() -> None:
    held: list[Any] = [None]
    known: dict[Any, int] = {}
    for number, value in enumerate(VALUES):
        held[0] = value
        guard = guard_of(roots_of(lambda: held[0], {}))
        assert guard.holds()
        assert known.setdefault(guard.key, number) == number
        held[0] = "another"
        assert not guard.holds()
        held[0] = float("nan") if value is VALUES[7] else value  # an equal one
        assert guard.holds() and guard.renew().key == guard.key
        held.clear()
        assert not guard.holds()
        held.append(None)
    assert len(known) == len(VALUES)


@pytest.mark.full
def test_a_check_takes_few_instructions_whatever_there_is_to_compare() -> None:
    held = {str(number): float(number) for number in range(300)}

    def one(x: Any) -> Any:
        return x * held["0"]

    def many(x: Any) -> Any:
        return [x * value for value in held.values()]

    few, all_of_them = (guard_of(roots_of(fn, {})) for fn in (one, many))
    assert len(few.facts) == 1 and len(all_of_them.facts) == 301
    counts = [count(guard.holds).instructions for guard in (few, all_of_them)]
    assert counts[0] <= 40
    # The size of a container is asked for in Python.
    assert counts[1] <= counts[0] + 12


def large_list() -> tuple[Any, Any, str]:
    held = [0.0] * 2000
    return lambda x: x * sum(held), lambda: held.append(1.0), "is a list of 2,000 values; pass it as an argument"


def large_array() -> tuple[Any, Any, str]:
    held = {"it": np.zeros(100_000)}
    change = partial(held.update, it=np.ones(100_000))
    return lambda x: x * float(held["it"][0]), change, "is a NumPy array of 800,000 bytes .* make it read-only"


@pytest.mark.parametrize("make", [large_list, large_array], ids=lambda make: make.__name__)
def test_what_is_too_large_to_be_compared_is_said_once(make: Any) -> None:
    fn, change, message = make()
    run, x = px.compile(fn), px.ones((2,), device=Jax())
    with pytest.warns(RuntimeWarning, match=rf"held.*, read in .*\), {message}"):
        assert run(x).tolist() == [0.0, 0.0]
    change()
    assert run(x).tolist() == [1.0, 1.0]
    assert run.traces == 2


def test_what_cannot_change_is_not_said() -> None:
    array, many = np.zeros(100_000), {str(number): number for number in range(5000)}
    array.flags.writeable = False
    guard = guard_of(roots_of(lambda: (array[0], many["7"], len(many), many.get("x", 8)), {}))
    assert {label.partition(",")[0] for label in guard.unseen} == set() and guard.holds()
    many["x"] = 8
    assert not guard.holds()


def test_reading_stops_somewhere() -> None:
    held: list[Any] = []
    held.append(held)

    def deep(x: Any) -> Any:
        return deeper(x)

    def deeper(x: Any) -> Any:
        return deep(x) if held else deeper(held)

    assert guard_of(roots_of(deep, {})).holds()


@pytest.mark.parametrize(
    "fn",
    [len, "a".join, print, np.add, attrgetter("shape"), Path, int, type("Called", (), {"__call__": len})()],
    ids=lambda fn: getattr(fn, "__name__", "object"),
)
def test_functions_without_code_read_nothing(fn: Any) -> None:
    assert guard_of(roots_of(fn, {"x": fn})).or_none is None


@both
def test_a_change_is_explained(backend: Backend) -> None:
    held: dict[str, Any] = {"beta": 0.1, "on": False, "array": np.zeros(2)}
    layers = [Linear(2, 2, device=backend).init(0) for _ in range(2)]

    def train(x: Any) -> Any:
        return layers[0](x) * held["beta"] * held["array"].sum() if held["on"] else x

    run, x = px.compile(train), px.ones((2,), device=backend)
    outside = "it comes from outside, and each value needs a program of its own; pass"
    changes: dict[str, tuple[Any, Any, Any, str]] = {
        "held['beta']": (
            held, "beta", 0.2,
            f"was 0.1 and is 0.2 ({outside} it as an argument, or to a Learner with inputs=, which is traced once)",
        ),
        "held['on']": (
            held, "on", True, f"was False and is True ({outside} a Bool tensor, and choose with phlox.where)"
        ),
        "held['array']": (
            held, "array", np.ones(2), f"[0.0, 0.0] and is a NumPy array of shape (2,), [1.0, 1.0] ({outside}"
        ),
        "layers[0]": (
            layers, 0, layers[1],
            f"was the Linear at {id(layers[0]):#x} and is the Linear at {id(layers[1]):#x} ({outside} it as an arg",
        ),
    }  # fmt: skip
    with px.debug.explain_recompiles() as recompiles:
        run(x)
        for container, key, value, _ in changes.values():
            container[key] = value
            run(x)
    for one, (path, (*_, text)) in zip(recompiles, changes.items(), strict=True):
        (change,) = one.changes
        assert change.path.startswith(f"{path}, read in test_a_change_is_explained.<locals>.train (test_guard.py:")
        assert text in str(change)


@both
def test_many_values_are_warned_of_once(backend: Backend) -> None:
    held = {"beta": 0.0}
    run, x = px.compile(lambda x: x * held["beta"]), px.ones((2,), device=backend)

    def call(value: float) -> None:
        held["beta"] = value
        assert run(x).tolist() == [value, value]

    for value in range(7):
        call(float(value))
    with pytest.warns(RuntimeWarning, match=r"compiled for 8 values of held\['beta'\], read in .*inputs="):
        call(7.0)
    for value in range(12):
        call(float(value))
    assert run.traces == 12


def test_what_someone_else_changes_while_a_function_is_traced_is_read_again() -> None:
    held, next_values = SimpleNamespace(beta=1.0), [2.0]

    def fn(x: Any) -> Any:
        y = x * held.beta
        for value in next_values:  # as another thread would
            vars(held)["beta"] = value
        return y

    run, x = px.compile(fn), px.ones((2,), device=Jax())
    assert run(x).tolist() == run(x).tolist() == [2.0, 2.0]
    assert run.traces == 2 and run.programs == 1

    def restless(x: Any) -> Any:
        vars(held).update(beta=held.beta + 1.0)
        return x * held.beta

    with pytest.raises(
        CompileError, match=r"restless: held.beta, read in .*, changes each time the function is traced"
    ):
        px.compile(restless)(x)


# --- what the function itself changes


def counter(backend: Backend) -> tuple[Any, str]:
    number = 0

    def fn(x: Any) -> Any:
        nonlocal number
        number += 1
        return x * number

    return fn, "number, read in .*, is changed by the function itself.* trace, 0; pass it as an argument"


def only_counted(backend: Backend) -> tuple[Any, str]:
    held = {"calls": 0}

    def fn(x: Any) -> Any:
        held["calls"] += 1
        return x

    return fn, r"held\['calls'\], read in .*, is changed by the function itself"


def first_call(backend: Backend) -> tuple[Any, str]:
    first = True

    def fn(x: Any) -> Any:
        nonlocal first
        if first:
            first = False
        return x

    return fn, "first, read in .*, is changed by the function itself.* trace, True;"


def state(backend: Backend) -> tuple[Any, str]:
    held: Any = None

    def fn(x: Any) -> Any:
        nonlocal held
        held = x if held is None else held + x
        return held

    return fn, "held, read in .*, is changed by the function itself.* trace, None;"


def buffer(backend: Backend) -> tuple[Any, str]:
    held = np.zeros(2, np.float32)

    def fn(x: Any) -> Any:
        held[0] += 1
        return x * float(held.sum())

    return fn, "held, read in .*, is changed by the function itself.* trace; pass"


@both
@pytest.mark.parametrize("make", [counter, only_counted, first_call, state, buffer], ids=lambda make: make.__name__)
def test_what_a_function_changes_itself_is_warned_of_once_and_not_traced_for_ever(make: Any, backend: Backend) -> None:
    fn, message = make(backend)
    run, x = px.compile(fn), px.ones((2,), device=backend)
    with pytest.warns(RuntimeWarning, match=message):
        run(x)
    for _ in range(3):
        assert run(x).tolist() == [1.0, 1.0]
    assert run.traces == run.programs == 1
    if make is state:
        return  # another trace would use a tracer that has ended
    longer = px.ones((3,), device=backend)
    for _ in range(3):
        assert run(longer).shape == (3,)
        assert run(x).shape == (2,)
    assert run.traces == 2 and run.programs == 1


@both
@pytest.mark.filterwarnings("error")
def test_a_warning_as_an_error_leaves_everything_as_it_was(backend: Backend) -> None:
    fn, message = counter(backend)
    model = Linear(2, 2, device=Autodiff(backend).device()).init(0)
    before = model.weight.val().tolist()
    run = px.compile(lambda model, x: (model, fn(x)), donate="model")
    with pytest.raises(RuntimeWarning, match=message):
        run(model, px.ones((2,), device=backend))
    assert model.weight.val().tolist() == before


# --- callers


@both
def test_every_kind_of_call_is_guarded(backend: Backend) -> None:
    """By keyword, donated, in steps, verified, from several threads, and the report of a call that is not made."""
    held = {"beta": 1.0}

    def fn(x: Any) -> Any:
        return x * held["beta"]

    device = backend.device()
    runs = {
        "keyword": (px.compile(fn), lambda run: run(x=px.ones((2,), device=device)).tolist()),
        "donated": (px.compile(fn, donate="x"), lambda run: run(px.ones((2,), device=device)).tolist()),
        "steps": (px.compile(fn, steps=2, over="x"), lambda run: run(px.ones((2, 2), device=device)).tolist()[1]),
        "verified": (px.compile(fn, verify=True), lambda run: run(px.ones((2,), device=device)).tolist()),
    }

    def check(value: float) -> None:
        held["beta"] = value
        for run, call in runs.values():
            assert call(run) == [value, value]

    for value in (1.0, 2.0, 1.0):
        check(value)
    assert {name: run.traces for name, (run, _) in runs.items()} == dict.fromkeys(runs, 2)

    wrong: list[Any] = []
    x = px.ones((2,), device=device)

    def work() -> None:
        found = [runs["keyword"][0](x).tolist() for _ in range(20)]
        wrong.extend(one for one in found if one not in ([1.0] * 2, [2.0] * 2))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        held["beta"] = 1.0 + number % 2
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_report_is_of_the_program_of_now() -> None:
    held = {"layers": 1}

    def fn(x: Any) -> Any:
        for _ in range(held["layers"]):
            x = x @ x
        return x

    run, x = px.compile(fn), px.ones((8, 8), device=Jax())
    flops = [run.lower(x).flops]
    held["layers"] = 2
    flops.append(run.lower(x).flops)
    assert flops[0] is not None and flops[1] == 2 * flops[0]


def _loss(model: Any, batch: Any, beta: float) -> Any:
    return (model(batch[0]) * 0.0).mean() + beta


def _learners(beta: dict[str, float]) -> Iterator[tuple[str, dict[str, Any]]]:
    class Trainer:
        def __init__(self) -> None:
            self.held = beta

        def step(self, model: Any, batch: Any) -> Any:
            return _loss(model, batch, self.held["value"])

    def loss(output: Any, target: Any) -> Any:
        return (output * 0.0).mean() + beta["value"]

    def update(model: Any, optimizer: Any, rate: float, batch: Any) -> Any:
        return model, {"loss": _loss(model, batch, beta["value"]).detach()}

    yield "loss", {"loss": loss}
    yield "step", {"step": lambda model, batch: _loss(model, batch, beta["value"])}
    yield "method", {"step": Trainer().step}
    yield "update", {"update": update, "validate": lambda model, batch: _loss(model, batch, beta["value"])}
    yield "accumulate", {"step": Trainer().step, "accumulate": 2}
    yield "metric", {"loss": lambda output, target: output.mean(), "metrics": {"m": loss}}
    yield "input", {"step": _loss, "inputs": {"beta": lambda learner: learner.epoch + 1.0}}
    yield "steps", {"step": Trainer().step, "steps_per_call": 2}


@pytest.mark.every(4)
@pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("kind", [name for name, _ in _learners({})])
def test_a_learner_sees_what_a_callback_changes(kind: str, engine: str) -> None:
    beta = {"value": 0.0}
    options = dict(_learners(beta))[kind]
    rows = np.ones((4, 2), np.float32)
    model = Linear(2, 2).init(seed=0).to_device(engine)
    learner = Learner(model, SgdConfig(), 0.1, compile=True, **options)
    anneal = LambdaCallback(on_epoch_start=lambda learner: beta.update(value=learner.epoch + 1.0))
    loader = Loader((rows, rows), 2)
    history = learner.fit(loader, validation=loader, epochs=3, progress=False, callbacks=[anneal])
    name = "m" if kind == "metric" else "loss"
    assert [report.train[name] for report in history] == [1.0, 2.0, 3.0]
    if kind != "input":  # in a validation, that of the next step
        assert [report.validation[name] for report in history] == [1.0, 2.0, 3.0]


def test_tracers_of_another_call_are_still_refused() -> None:
    held: list[Any] = []

    def keep(x: Any) -> Any:
        held.append(x * 2.0)
        return x

    px.compile(keep)(px.ones((2,), device=Jax()))
    with pytest.raises(CompileError, match="which has ended"):
        px.compile(lambda x: x + held[0])(px.ones((2,), device=Jax()))
