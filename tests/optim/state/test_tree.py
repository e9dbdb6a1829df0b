"""Optimizer states of any kind: they are stepped, saved, loaded, resumed, and compiled where they can be.

Serves: phlox/optim/state/records.py
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import OptimizerError, RecordError
from phlox.record import Record, gather, load, restore, save

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]
SUFFIXES = ["safetensors", "msgpack", "phlox", "npz", "json"]


class Phase(enum.Enum):
    WARM = 1
    COLD = "c"


class Level(enum.IntEnum):
    LOW = 3


class Pair(NamedTuple):
    mean: Any
    count: Any


@dataclasses.dataclass
class Moments:
    mean: Any
    count: int = 0
    note: str = "of the step"

    def __post_init__(self) -> None:
        self.made = True  # no declared field


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    scale: Any
    pair: Pair


class Gate(px.Module):
    """A module in a state: a learned step size, say."""

    def __init__(self, like: px.Tensor) -> None:
        self.scale = px.Param(px.ones(like.shape[-1:], device=like.device))
        self.power = 2.0

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return x * self.scale.val().detach()


class Ledger:
    """An object with a record of its own."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def into_record(self) -> Record:
        return Record({"seen": list(self.seen), "skeleton": len(self.seen), "sums": np.cumsum([0.0, *self.seen])})

    def load_record(self, record: Record) -> None:
        self.seen = list(record["seen"])


INIT: dict[str, Callable[[px.Tensor], Any]] = {
    "a dataclass": lambda x: Moments(px.zeros_like(x)),
    "a frozen dataclass": lambda x: Frozen(0.5, Pair(px.zeros_like(x), 1)),
    "a named tuple": lambda x: Pair(px.zeros_like(x), 0),
    "an array": lambda x: np.arange(6, dtype=np.float64).reshape(2, 3),
    "a small array": lambda x: np.arange(3, dtype=np.int16),
    "a complex array": lambda x: np.array([[1 + 2j, -3.5j]], np.complex64),
    "an array of text": lambda x: np.array(["ab", "c"]),
    "an array of dates": lambda x: np.array(["2020-01-01"], "datetime64[D]"),
    "an array of no axes": lambda x: np.array(1.5),
    "a big-endian array": lambda x: np.arange(3, dtype=">f4"),
    "an empty array": lambda x: np.zeros((0, 2), np.float32),
    "a float32": lambda x: np.float32(0.1),
    "a float64": lambda x: np.float64(0.1),
    "a float16": lambda x: np.float16(0.1),
    "an int8": lambda x: np.int8(-3),
    "a uint64": lambda x: np.uint64(2**63 + 5),
    "a bool_": lambda x: np.bool_(True),
    "a complex64": lambda x: np.complex64(1 - 2j),
    "bytes": lambda x: b"\x00\xff",
    "a bytearray": lambda x: bytearray(b"ab"),
    "a set": lambda x: {1, 2.5, "three", b"4", None, (5, "six"), Phase.WARM},
    "a frozenset": lambda x: frozenset({frozenset({1}), True}),
    "a complex number": lambda x: complex(0.1, -0.0),
    "an enum": lambda x: Phase.COLD,
    "an int enum": lambda x: Level.LOW,
    "a large int": lambda x: 2**200,
    "a deque": lambda x: deque([px.zeros_like(x), 2, b"x"], maxlen=4),
    "an ordered dict": lambda x: OrderedDict([("b", 1), ("a", px.zeros_like(x))]),
    "odd keys": lambda x: {1: px.zeros_like(x), "1": 2.0, "": 3, "a.b": 4, (1, b"k"): 5.0, Phase.WARM: 6, None: 7},
    "a module": lambda x: Gate(x),
    "an object": lambda x: Ledger(),
    "nested": lambda x: {"a": [Moments(px.zeros_like(x)), (None, {"g": Gate(x), "b": b"z"})], "s": {3}},
    "plain": lambda x: {"m": px.zeros_like(x), "n": 0, "r": 0.5, "t": "text", "none": None, "yes": True},
}  # fmt: skip


class Keeping(optim.SimpleOptimizer):
    """Gradient descent with momentum, beside something else."""

    def __init__(self, extra: Callable[[px.Tensor], Any]) -> None:
        self.extra = extra

    def init(self, tensor: px.Tensor) -> Any:
        return {"momentum": px.zeros_like(tensor), "count": 0, "extra": self.extra(tensor)}

    def step(self, lr: float, tensor: px.Tensor, grad: px.Tensor, state: Any) -> tuple[px.Tensor, Any]:
        momentum = state["momentum"] * 0.9 + grad
        extra = state["extra"]
        if isinstance(extra, Ledger):
            extra.seen.append(1.0 + len(extra.seen))
        elif isinstance(extra, Moments):
            extra = dataclasses.replace(extra, mean=extra.mean + grad, count=extra.count + 1)
            momentum = momentum + extra.mean * 0.1
        elif isinstance(extra, Pair):
            extra = Pair(extra.mean + grad, extra.count + 1)
            momentum = momentum + extra.mean * 0.1
        elif isinstance(extra, Gate):
            extra = extra.map(lambda path, param: param.map(lambda value: value * 1.5))
            momentum = extra(momentum)
        elif self.extra is INIT["a float32"]:  # in a compiled function its class is another
            momentum = momentum * extra
        return tensor - momentum * lr, {"momentum": momentum, "count": state["count"] + 1, "extra": extra}


def alike(one: Any, other: Any) -> bool:
    """Are two states of the same types and values?"""
    if type(one) is not type(other):
        return False
    match one:
        case px.Tensor():
            return one.device == other.device and np.array_equal(one.numpy(), other.numpy())
        case np.ndarray() | np.generic():
            return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
        case px.Module():
            return [(p, x.val().tolist()) for p, x in one.named_params()] == [
                (p, x.val().tolist()) for p, x in other.named_params()
            ]
        case Ledger():
            return one.seen == other.seen
        case dict():
            return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
        case list() | tuple() | deque():
            return len(one) == len(other) and all(map(alike, one, other))
        case Moments():
            return alike(vars(one), vars(other))
        case Frozen():
            return alike(dataclasses.astuple(one), dataclasses.astuple(other)) or alike(one.pair, other.pair)
        case _:
            return one == other and repr(one) == repr(other)


def start(kind: str, backend: Backend) -> tuple[Any, optim.OptimizerAdaptor]:
    model = nn.Linear(3, 2, device=backend.device()).init(0).train()
    return model, optim.OptimizerAdaptor(Keeping(INIT[kind]))


def go(model: Any, optimizer: Any, steps: int) -> Any:
    x = px.ones((4, 3), device=model.weight.device)
    for _ in range(steps):
        _, grads = px.value_and_grad(lambda m: m(x).square().mean())(model)
        model = optimizer.step(0.1, model, grads)
    return model


def same(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(a.val().numpy(), b.val().numpy()) for a, b in zip(one.params(), other.params(), strict=True)
    )


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("kind", INIT)
def test_every_kind_is_stepped_saved_loaded_and_resumed(kind: str, backend: Backend, tmp_path: Path) -> None:
    model, optimizer = start(kind, backend)
    model = go(model, optimizer, 3)
    fresh = type(INIT[kind](px.zeros((2, 3))))
    states = {id: copy.deepcopy(state) for id, state in optimizer.states.items()}
    assert len(states) == 2 and all(type(state["extra"]) is fresh for state in states.values())
    suffixes = SUFFIXES if backend == NumPy() else SUFFIXES[:1]
    files = [save(gather(model=model, optimizer=optimizer), tmp_path / f"run.{suffix}") for suffix in suffixes]
    expected = go(model, optimizer, 2)
    for path in files:
        again, resumed = start(kind, backend)
        restore(load(path), model=again, optimizer=resumed)
        twice = save(gather(model=again, optimizer=resumed), path.with_name("twice.safetensors"))  # before any step
        for source in (path, twice):
            again, resumed = start(kind, backend)
            restore(load(source), model=again, optimizer=resumed)
            assert same(go(again, resumed, 2), expected), path
        assert resumed.states.keys() == optimizer.states.keys()
        assert all(alike(resumed.states[id], optimizer.states[id]) for id in states), path


@pytest.mark.parametrize("kind", INIT)
def test_what_was_loaded_is_what_was_saved(kind: str, tmp_path: Path) -> None:
    model, optimizer = start(kind, NumPy())
    model = go(model, optimizer, 1)
    path = save(optimizer.into_record(), tmp_path / "optimizer")
    resumed = optim.OptimizerAdaptor(Keeping(INIT[kind]))
    resumed.load_record(load(path))
    resumed.adopt_states(model.valid().params())
    assert all(alike(resumed.states[id], state) for id, state in optimizer.states.items())


COMPILED = [kind for kind in INIT if kind != "an object"]
MOVING = ("a dataclass", "a named tuple", "a module", "nested")
"""Kinds with floats that a step changes: a compiled one rounds otherwise."""
NUMBERS = ("a float32", "a float64", "a float16", "an int8")
"""Of NumPy; a compiled step gives Python's."""


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=repr)
def test_every_kind_in_a_compiled_step(backend: Backend) -> None:
    kinds = COMPILED if backend == Jax() else ["nested"]
    model = nn.Linear(3, 2, device=backend.device()).init(0).train()
    x = px.ones((4, 3), device=backend)

    def step(models: list[Any], optimizers: list[Any]) -> list[Any]:
        return [go_once(model, optimizer, x) for model, optimizer in zip(models, optimizers, strict=True)]

    def go_once(model: Any, optimizer: Any, x: px.Tensor) -> Any:
        _, grads = px.value_and_grad(lambda m: m(x).square().mean())(model)
        return optimizer.step(0.1, model, grads)

    models = [model.map(lambda path, param: px.Param(param.val())) for _ in kinds]
    eager = [optim.OptimizerAdaptor(Keeping(INIT[kind])) for kind in kinds]
    optimizers = [optim.OptimizerAdaptor(Keeping(INIT[kind])) for kind in kinds]
    expected, found = models, models
    compiled = px.compile(step)
    for _ in range(3):
        expected, found = step(expected, eager), compiled(found, optimizers)
    for kind, one, other, a, b in zip(kinds, expected, found, eager, optimizers, strict=True):
        for p, q in zip(one.params(), other.params(), strict=True):
            np.testing.assert_allclose(p.val().numpy(), q.val().numpy(), rtol=1e-5, err_msg=kind)
        for id, state in a.states.items():
            there = b.states[id]
            assert there["count"] == state["count"] == 3
            if kind in MOVING:
                assert type(there["extra"]) is type(state["extra"]), kind
            elif kind in NUMBERS:
                assert type(there["extra"]) in (int, float) and there["extra"] == pytest.approx(
                    float(state["extra"])
                ), kind
            else:
                assert alike(there["extra"], state["extra"]), kind


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=repr)
def test_what_cannot_be_compiled_is_said(backend: Backend) -> None:
    model, optimizer = start("an object", backend)
    model = go(model, optimizer, 1)
    with pytest.raises(OptimizerError, match="holds a Ledger .*output of a compiled function"):
        px.compile(lambda model, optimizer: model)(model, optimizer)


def test_steps_that_are_skipped_in_a_compiled_function() -> None:
    def step(model: Any, optimizer: Any, x: px.Tensor) -> Any:
        _, grads = px.value_and_grad(lambda m: m(x).square().mean())(model)
        return optimizer.step(0.1, model, grads)

    class Counting(Keeping):
        def step(self, lr: float, tensor: px.Tensor, grad: px.Tensor, state: Any) -> tuple[px.Tensor, Any]:
            value, state = super().step(lr, tensor, grad, state)
            return value, {**state, "extra": state["extra"] + 1}

    model = nn.Linear(3, 2, device="jax").init(0).train()
    good, bad = px.ones((4, 3), device="jax"), px.full((4, 3), float("nan"), device="jax")
    optimizer = optim.OptimizerAdaptor(Keeping(INIT["an array"]), skip_nonfinite=True)
    compiled = px.compile(step)
    after = compiled(model, optimizer, good)
    assert same(compiled(after, optimizer, bad), after)
    assert all(state["count"] == 1 for state in optimizer.states.values())
    counting = optim.OptimizerAdaptor(Counting(INIT["an array"]), skip_nonfinite=True)
    with pytest.raises(OptimizerError, match="skip_nonfinite cannot choose between two values of ndarray"):
        px.compile(step)(model, counting, good)


def test_what_is_no_state_is_said() -> None:
    for value, said in (
        (object(), "got object"),
        (lambda x: x, "got function"),
        ({object()}, "got object"),
        (np.array([None]), "NumPy array of object"),
        ({(1, (2, object())): 1}, "got object"),
        ({"a": {"b": 1}, "a.b": 2}, "two entries of the state have this path"),
    ):
        model, optimizer = nn.Linear(3, 2).init(0).train(), optim.OptimizerAdaptor(Keeping(lambda x, v=value: v))

        def save_it(model: Any = model, optimizer: Any = optimizer) -> None:
            go(model, optimizer, 1)
            optimizer.into_record()

        with pytest.raises(OptimizerError, match=said):
            save_it()


def test_a_class_that_is_not_here() -> None:
    model, optimizer = start("a dataclass", NumPy())
    go(model, optimizer, 1)
    record = optimizer.into_record()
    for name in ("nowhere:Moments", "os:path", "builtins:int", "subprocess:Popen", "tests.optim.test_state_kinds:Pair"):
        entries = {path: record[path] for path in record}
        for path in record.values:
            if path.endswith(".skeleton"):
                entries[path] = json.loads(json.dumps(record[path]).replace(f"{__name__}:Moments", name))
        with pytest.raises(RecordError, match=f"no dataclass '{name}' here; import or define it"):
            optimizer.load_record(Record(entries))


def test_a_state_that_init_does_not_make() -> None:
    model, optimizer = start("a module", NumPy())
    model = go(model, optimizer, 1)
    other = optim.OptimizerAdaptor(Keeping(lambda x: None))
    other.load_record(optimizer.into_record())
    with pytest.raises(OptimizerError, match="weight: the state that was loaded does not fit: the record holds a Gate"):
        go(model, other, 1)
