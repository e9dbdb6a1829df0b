"""What a compiled function reads from outside is guarded: a change is noticed on every engine, nothing else is.

Serves: phlox/transform/compile/guards/{watches,slots,roots,libraries}.py
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

COMPILERS = [Jax(), Torch()]
ENGINES = [NumPy(), *COMPILERS]
Case = tuple[Callable[[Any], Any], Callable[[float], object]]
"""A function that multiplies by a number from outside, and what changes that number."""

SCALE = 1.0
KEY = "beta"
SETTINGS: dict[str, Any] = {"beta": 1.0, "inner": {"x": 1.0}}


def set_scale(value: float) -> None:
    globals()["SCALE"] = value


def by_scale(x: Any) -> Any:
    return x * SCALE


def by_argument(x: Any, settings: Any, *, other: float = 1.0) -> Any:
    return x * settings.beta * other


def rebound(x: Any) -> Any:
    return x


class Trainer:
    kind = 1.0

    def __init__(self) -> None:
        self.beta, self.options, self.other = 1.0, {"g": 1.0}, 0

    def step(self, x: Any) -> Any:
        return x * self.beta

    def through_method(self, x: Any) -> Any:
        return self.inner(x)

    def inner(self, x: Any) -> Any:
        return x * self.options["g"]

    @property
    def doubled(self) -> float:
        return self.beta * 2.0

    def through_property(self, x: Any) -> Any:
        return x * 0.5 * self.doubled

    def through_argument(self, x: Any) -> Any:
        return by_argument(x, self)

    def through_lambda(self, x: Any) -> Any:
        return (lambda y: y * self.beta)(x)

    def through_comprehension(self, x: Any) -> Any:
        return sum([x * one for one in [self.beta]])

    def by_class(self, x: Any) -> Any:
        return x * self.kind

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.kind

    @staticmethod
    def of_none(x: Any) -> Any:
        return x * SCALE

    def through_class_methods(self, x: Any) -> Any:
        return self.of_class(self.of_none(x))

    def __call__(self, x: Any) -> Any:
        return x * self.beta


class Above(Trainer):
    def step(self, x: Any) -> Any:
        return super().step(x) * 1.0


@dataclasses.dataclass
class Options:
    beta: float = 1.0


class Slots:
    __slots__ = ("beta",)


class Dotted(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Indexed:
    def __init__(self) -> None:
        self.held = {"beta": 1.0}

    def __getitem__(self, key: str) -> Any:
        return self.held[key]


class Mode(enum.Enum):
    ONE, TWO = 1.0, 2.0


class Net(px.Module):
    """A module of the user's, with a global and with what its class has."""

    factor = 1.0

    def __init__(self, device: Any) -> None:
        self.bias = px.Param(px.zeros((2,), device=device))

    def scaled(self, x: Any) -> Any:
        return x * SCALE * self.factor

    def __call__(self, x: Any) -> Any:
        return self.scaled(x) + self.bias.val()


def setter(obj: Any, name: str) -> Callable[[float], object]:
    return lambda value: setattr(obj, name, value)


def put(container: Any, key: Any) -> Callable[[float], object]:
    return lambda value: container.__setitem__(key, value)


def of_trainer(name: str, attribute: str = "beta", cls: type[Any] = Trainer) -> Callable[[Any], Case]:
    def make(device: Any) -> Case:
        trainer = cls()
        return getattr(trainer, name), put(trainer.options, "g") if attribute == "g" else setter(trainer, attribute)

    return make


def of_object(obj: Any, fn: Callable[[Any, Any], Any], change: Callable[[Any], Callable[[float], object]]) -> Any:
    """A case with an object of its own, which the function has in its closure."""

    def make(device: Any) -> Case:
        held = obj()
        return lambda x: fn(x, held), change(held)

    return make


CASES: dict[str, Callable[[Any], Case]] = {}


def case(make: Callable[[Any], Case]) -> Callable[[Any], Case]:
    CASES[make.__name__.replace("_", " ").strip()] = make
    return make


@case
def a_global(device: Any) -> Case:
    return lambda x: x * SCALE, set_scale


@case
def a_closure(device: Any) -> Case:
    beta = 1.0

    def change(value: float) -> None:
        nonlocal beta
        beta = value

    return lambda x: x * beta, change


@case
def an_item(device: Any) -> Case:
    held = {"beta": 1.0}
    return lambda x: x * held["beta"], put(held, "beta")


@case
def an_item_of_an_item(device: Any) -> Case:
    return lambda x: x * SETTINGS["inner"]["x"], put(SETTINGS["inner"], "x")


@case
def a_key_from_outside(device: Any) -> Case:
    return lambda x: x * SETTINGS[KEY], put(SETTINGS, "beta")


@case
def get_with_a_default(device: Any) -> Case:
    held: dict[str, float] = {}
    return lambda x: x * held.get("beta", 1.0), put(held, "beta")


@case
def an_attribute(device: Any) -> Case:
    held = types.SimpleNamespace(inner=types.SimpleNamespace(beta=1.0))
    return lambda x: x * held.inner.beta, setter(held.inner, "beta")


@case
def an_alias(device: Any) -> Case:
    held = types.SimpleNamespace(inner=Options())

    def fn(x: Any) -> Any:
        inner = held.inner
        beta = inner.beta
        return x * beta

    return fn, setter(held.inner, "beta")


@case
def an_object_that_is_rebound(device: Any) -> Case:
    held = Options()

    def change(value: float) -> None:
        nonlocal held
        held = Options(value)

    return lambda x: x * held.beta, change


@case
def a_name_of_an_attribute(device: Any) -> Case:
    held, names = Options(), ["beta"]
    return lambda x: x * getattr(held, names[0]), setter(held, "beta")


@case
def a_loop_over_a_list(device: Any) -> Case:
    held = [1.0, 1.0]

    def fn(x: Any) -> Any:
        for weight in held:
            x = x * weight
        return x

    return fn, put(held, 1)


@case
def the_length_of_a_list(device: Any) -> Case:
    held = [1]

    def change(value: float) -> None:
        held[:] = [1] * int(value)

    return lambda x: x * float(len(held)), change


@case
def a_loop_over_objects(device: Any) -> Case:
    held = [Options()]

    def fn(x: Any) -> Any:
        for one in held:
            x = x * one.beta
        return x

    return fn, setter(held[0], "beta")


@case
def a_set(device: Any) -> Case:
    held: set[str] = set()
    return lambda x: x * 2.0 if "a" in held else x, lambda value: held.add("a") if value == 2.0 else held.clear()


@case
def a_tuple_that_is_rebound(device: Any) -> Case:
    held = (1.0, 1.0)

    def change(value: float) -> None:
        nonlocal held
        held = (value, 1.0)

    return lambda x: x * functools.reduce(lambda a, b: a * b, held), change


@case
def keywords(device: Any) -> Case:
    held = {"by": 1.0}

    def scaled(x: Any, by: float) -> Any:
        return x * by

    return lambda x: scaled(x, **held), put(held, "by")


@case
def an_array_in_place(device: Any) -> Case:
    held = np.ones(2, np.float32)

    def change(value: float) -> None:
        held[:] = value

    return lambda x: x * px.tensor(held, device=device), change


@case
def an_array_that_is_rebound(device: Any) -> Case:
    held = np.ones(2, np.float32)

    def change(value: float) -> None:
        nonlocal held
        held = np.full(2, value, np.float32)

    return lambda x: x * px.tensor(held, device=device), change


@case
def a_helper(device: Any) -> Case:
    return lambda x: by_scale(x), set_scale


@case
def an_argument_of_a_helper(device: Any) -> Case:
    held = Options()
    return lambda x: by_argument(x, held, other=1.0), setter(held, "beta")


@case
def a_conditional_argument(device: Any) -> Case:
    held = Options()
    return lambda x: by_argument(x, held if x.shape == (2,) else None), setter(held, "beta")


@case
def a_parameter_that_is_replaced(device: Any) -> Case:
    held = types.SimpleNamespace(inner=Options(), beta=1.0)

    def scaled(x: Any, settings: Any) -> Any:
        settings = settings.inner
        return x * settings.beta

    return lambda x: scaled(x, held), setter(held.inner, "beta")


@case
def any_number_of_arguments(device: Any) -> Case:
    held = Options()

    def scaled(x: Any, *by: float, **more: float) -> Any:
        return x * by[0] * more["beta"] / held.beta

    def fn(x: Any) -> Any:
        return scaled(x, held.beta, beta=held.beta)

    return fn, setter(held, "beta")


@case
def an_argument_of_a_library(device: Any) -> Case:
    held = Options()
    return lambda x: px.where(x > 0.0, x * 1.0, x).__mul__(held.beta), setter(held, "beta")


@case
def a_default_in_place(device: Any) -> Case:
    held = [1.0]

    def scaled(x: Any, by: list[float] = held) -> Any:
        return x * by[0]

    return lambda x: scaled(x), put(held, 0)


@case
def a_default_that_is_rebound(device: Any) -> Case:
    def scaled(x: Any, *, by: float = 1.0) -> Any:
        return x * by

    return scaled, lambda value: setattr(scaled, "__kwdefaults__", {"by": value})


@case
def a_function_that_is_rebound(device: Any) -> Case:
    return lambda x: rebound(x), lambda value: globals().__setitem__("rebound", lambda x: x * value)


@case
def an_attribute_of_a_function(device: Any) -> Case:
    def fn(x: Any) -> Any:
        return x * fn.beta  # pyright: ignore[reportFunctionMemberAccess]

    fn.beta = 1.0  # pyright: ignore[reportFunctionMemberAccess]
    return fn, setter(fn, "beta")


@case
def a_decorator(device: Any) -> Case:
    held = {"beta": 1.0}

    def decorated(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(x: Any) -> Any:
            return fn(x) * held["beta"]

        return inner

    return decorated(lambda x: x), put(held, "beta")


@case
def a_partial(device: Any) -> Case:
    held = Options()
    return lambda x: functools.partial(by_argument, settings=held)(x), setter(held, "beta")


@case
def a_recursion(device: Any) -> Case:
    held = Options()

    def fn(x: Any, depth: int = 3) -> Any:
        return by_argument(x, held) if depth == 0 else inner(x, depth - 1)

    inner = fn
    return lambda x: fn(x), setter(held, "beta")


@case
def a_generator(device: Any) -> Case:
    held = Options()

    def each(x: Any) -> Iterator[Any]:
        yield x * held.beta

    return lambda x: next(each(x)), setter(held, "beta")


@case
def a_class_that_is_made_inside(device: Any) -> Case:
    class Scaled:
        def __init__(self) -> None:
            self.by = SCALE

        def __call__(self, x: Any) -> Any:
            return x * self.by

    return lambda x: Scaled()(x), set_scale


@case
def an_object_that_is_called(device: Any) -> Case:
    trainer = Trainer()
    return trainer, setter(trainer, "beta")


@case
def a_captured_method(device: Any) -> Case:
    trainer = Trainer()
    method = trainer.through_method
    return lambda x: method(x), put(trainer.options, "g")


@case
def a_class_that_gets_another_method(device: Any) -> Case:
    class Changed(Trainer):
        def inner(self, x: Any) -> Any:
            return x

    trainer = Changed()
    return trainer.through_method, lambda value: setattr(Changed, "inner", lambda self, x: x * value)


@case
def an_object_that_gets_a_method(device: Any) -> Case:
    trainer = Trainer()
    return trainer.through_method, lambda value: setattr(trainer, "inner", lambda x: x * value)


@case
def an_imported_module(device: Any) -> Case:
    module: Any = types.ModuleType("settings_of_a_test")
    sys.modules[module.__name__], module.beta = module, 1.0

    def fn(x: Any) -> Any:
        from settings_of_a_test import beta  # pyright: ignore[reportMissingImports]

        return x * beta

    return fn, setter(module, "beta")


@case
def a_gradient(device: Any) -> Case:
    held = Options()
    return px.grad(lambda x: (x * x * (0.5 * held.beta)).sum()), setter(held, "beta")


@case
def a_gradient_inside(device: Any) -> Case:
    held = Options()

    def loss(x: Any) -> Any:
        return (x * x * (0.5 * held.beta)).sum()

    return lambda x: px.grad(loss)(x), setter(held, "beta")


@case
def vmap_and_scan(device: Any) -> Case:
    held = Options()

    def body(carry: Any, x: Any) -> Any:
        return carry, x * held.beta

    return lambda x: px.vmap(lambda row: px.scan(body, row, row[None])[1][0])(x), setter(held, "beta")


@case
def another_compiled_function(device: Any) -> Case:
    inner = px.compile(by_scale)
    return lambda x: inner(x), set_scale


@case
def a_library_calls_back(device: Any) -> Case:
    held = Options()
    return lambda x: functools.reduce(lambda y, _: y * held.beta, [0], x), setter(held, "beta")


@case
def a_flag(device: Any) -> Case:
    held = {"double": False}
    return lambda x: x * 2.0 if held["double"] else x, lambda value: held.update(double=value == 2.0)


@case
def a_name(device: Any) -> Case:
    held = {"kind": "one"}
    table = {"one": 1.0, "two": 2.0}
    return lambda x: x * table[held["kind"]], lambda value: held.update(kind="one" if value == 1.0 else "two")


@case
def something_that_was_none(device: Any) -> Case:
    held: dict[str, Any] = {"beta": None}
    return lambda x: x if held["beta"] is None else x * held["beta"], put(held, "beta")


def named_tuple(device: Any) -> Case:
    kind = collections.namedtuple("kind", "beta")
    held: dict[str, Any] = {"it": kind(1.0)}
    return lambda x: x * held["it"].beta, lambda value: held.update(it=kind(value))


CASES |= {
    "a method": of_trainer("step"),
    "a method of a class above": of_trainer("step", cls=Above),
    "a method of a method": of_trainer("through_method", "g"),
    "a property": of_trainer("through_property"),
    "self as an argument": of_trainer("through_argument"),
    "self in a lambda": of_trainer("through_lambda"),
    "self in a comprehension": of_trainer("through_comprehension"),
    "an attribute of the class": lambda device: (Trainer().by_class, setter(Trainer, "kind")),
    "class methods": lambda device: (Trainer().through_class_methods, setter(Trainer, "kind")),
    "static methods": lambda device: (Trainer().through_class_methods, set_scale),
    "a dataclass as a dict": of_object(
        Options, lambda x, o: x * dataclasses.asdict(o)["beta"], lambda o: setter(o, "beta")
    ),
    "the dict of an object": of_object(Options, lambda x, o: x * o.__dict__["beta"], lambda o: setter(o, "beta")),
    "vars": of_object(Options, lambda x, o: x * vars(o)["beta"], lambda o: setter(o, "beta")),
    "a namespace": of_object(
        lambda: argparse.Namespace(beta=1.0), lambda x, o: x * vars(o)["beta"], lambda o: setter(o, "beta")
    ),
    "slots": of_object(Slots, lambda x, o: x * o.beta, lambda o: setter(o, "beta")),
    "a dict with attributes": of_object(lambda: Dotted(beta=1.0), lambda x, o: x * o.beta, lambda o: put(o, "beta")),
    "an object with items": of_object(Indexed, lambda x, o: x * o["beta"], lambda o: put(o.held, "beta")),
    "an enum": of_object(
        lambda: {"m": Mode.ONE}, lambda x, o: x * o["m"].value, lambda o: lambda v: o.update(m=Mode(v))
    ),
    "a number of NumPy": of_object(lambda: [np.float32(1)], lambda x, o: x * float(o[0]), lambda o: put(o, 0)),
    "a deque": of_object(lambda: collections.deque([1.0], 3), lambda x, o: x * o[-1], lambda o: o.append),
    "a named tuple": named_tuple,
}  # fmt: skip


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    set_scale(1.0)
    Trainer.kind = Net.factor = 1.0
    globals()["rebound"] = lambda x: x


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed_and_a_known_value_is_not_traced_again(name: str, backend: Backend) -> None:
    fn, change = CASES[name](backend.device())
    run, x = px.compile(fn), px.ones((2,), device=backend)
    for value in (1.0, 2.0, 2.0, 1.0):
        change(value)
        assert run(x).tolist() == [value, value]
    assert run.traces == run.programs == (2 if backend.compiles else 0)


class Hostile:
    """Fails wherever it can."""

    def __init__(self) -> None:
        self.beta = 1.0

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    def __hash__(self) -> int:
        raise TypeError("no hash")

    def __repr__(self) -> str:
        raise ValueError("no text")

    @property
    def failing(self) -> Any:
        raise ValueError("not now")

    class Of:
        def __get__(self, instance: Any, owner: Any) -> Any:
            raise ValueError("not at all")

    at_the_class = Of()

    def method(self, x: Any) -> Any:
        return x * self.beta if self.beta else self.failing + self.at_the_class + self.nothing


hostile: Any = None


@pytest.mark.parametrize("backend", COMPILERS, ids=repr)
def test_objects_that_cannot_be_read_are_no_hindrance(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "hostile", Hostile())

    def fn(x: Any) -> Any:
        held = [hostile, hostile]
        for one in held:
            x = one.method(x)
        return x if [*filter(callable, held)] == [] else (hostile.failing, hostile.at_the_class, Hostile.at_the_class)

    run, x = px.compile(fn), px.ones((2,), device=backend)
    for beta in (1.0, 2.0, 1.0):
        hostile.beta = beta
        assert run(x).tolist() == [beta * beta] * 2
    assert run.traces == 2


# --- modules and tensors, which become constants


def eye(device: Any, value: float) -> nn.Linear:
    layer = nn.Linear(2, 2, bias=False, device=device).init(0)
    layer.weight.set(px.tensor(np.eye(2, dtype=np.float32) * value, device=device))
    return layer


WEIGHTS: dict[str, tuple[Any, Any, Any]] = {
    "a tensor": (lambda d: px.ones((2,), device=d), lambda x, w: x * w, lambda d, v, w: px.full((2,), v, device=d)),
    "a module": (lambda d: eye(d, 1.0), lambda x, w: w(x), lambda d, v, w: eye(d, v)),
    "a parameter that is set": (
        lambda d: eye(d, 1.0), lambda x, w: w(x),
        lambda d, v, w: (w.weight.set(px.tensor(np.eye(2, dtype=np.float32) * v, device=d)), w)[1],
    ),
    "a field": (lambda d: Net(d), lambda x, w: w(x), lambda d, v, w: (setattr(w, "factor", v), w)[1]),
    "a compiled module": (lambda d: px.compile(eye(d, 1.0)), lambda x, w: w(x), lambda d, v, w: px.compile(eye(d, v))),
    "a method": (lambda d: eye(d, 1.0).__call__, lambda x, w: w(x), lambda d, v, w: eye(d, v).__call__),
}  # fmt: skip


@pytest.mark.parametrize("backend", COMPILERS, ids=repr)
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_from_outside_are_those_of_now(name: str, backend: Backend) -> None:
    make, fn, change = WEIGHTS[name]
    device = backend.device()
    held = {"weights": make(device)}
    run, x = px.compile(lambda x: fn(x, held["weights"])), px.ones((2,), device=backend)
    for value in (1.0, 2.0, 3.0):
        held["weights"] = change(device, value, held["weights"])
        assert [run(x).tolist() for _ in range(2)] == [[value, value]] * 2
    assert run.traces == 3


class Rated(optim.SimpleOptimizer):
    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        return tensor - grad * (lr * SCALE), state


@pytest.mark.parametrize("backend", COMPILERS, ids=repr)
def test_what_the_arguments_bring_along_is_read_too(backend: Backend) -> None:
    device = Autodiff(backend).device()
    net = Net(device)
    net.activation = lambda x: x * SCALE
    x = px.ones((2,), device=device)

    def train(model: Any, optimizer: Any, x: Any) -> Any:
        loss = model.scaled(model.bias.val() + model.activation(x)).sum()
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(1.0, model, grads), loss.detach()

    def apply(fn: Any, x: Any) -> Any:
        return fn(x)

    run, optimizer = px.compile(train), optim.OptimizerAdaptor(Rated())
    applied = px.compile(apply)
    for scale, factor in ((1.0, 1.0), (2.0, 1.0), (2.0, 3.0)):
        set_scale(scale)
        Net.factor = factor
        model, loss = run(net, optimizer, x)
        assert loss.item() == 2 * scale * scale * factor
        assert model.bias.val().tolist() == [-scale * factor * scale] * 2
        assert applied(by_scale, x).tolist() == [scale, scale]
    assert run.traces == 3 and applied.traces == 2


# --- what makes no difference


class Logger:
    def __init__(self) -> None:
        self.lines, self.count, self.rate = list[str](), 0, 1.0

    def log(self, line: str) -> None:
        self.lines.append(line)


def _logger() -> Case:
    logger = Logger()

    def fn(x: Any) -> Any:
        logger.log("called")
        return x * logger.rate

    def change(value: float) -> None:
        logger.count += 1
        logger.lines.append("by someone else")
        logger.rate = 0.5 + 0.5  # another object

    return fn, change


def _self_elsewhere() -> Case:
    trainer = Trainer()
    return trainer.through_argument, setter(trainer, "other")


def _other_key() -> Case:
    held = {"beta": 1.0}
    return lambda x: x * held["beta"], put(held, "other")


def _equal_object() -> Case:
    held: list[Any] = [Options()]
    return lambda x: by_argument(x, held[0]), lambda value: held.__setitem__(0, Options())


def _equal_function() -> Case:
    def make(by: float) -> Any:
        return lambda x: x * by

    held = types.SimpleNamespace(fn=make(1.0))
    return lambda x: held.fn(x), lambda value: setattr(held, "fn", make(0.5 + 0.5))


def _cache() -> Case:
    cache: dict[Any, Any] = {}

    def table(size: int) -> Any:
        if size not in cache:
            cache[size] = np.ones(size, np.float32)
        return cache[size]

    return lambda x: x * float(table(x.shape[0])[0]), lambda value: cache.update({value: None})


def _lazily() -> Case:
    held = types.SimpleNamespace(table=None)

    def fn(x: Any) -> Any:
        if held.table is None:
            held.table = np.ones(2, np.float32)
        return x * float(held.table[0])

    return fn, lambda value: None


def _only_presence() -> Case:
    held: dict[str, Any] = {"teacher": 0}
    return lambda x: x * (2.0 if held["teacher"] is None else 1.0), put(held, "teacher")


SAME = {
    "a logger": _logger, "an attribute that is not read": _self_elsewhere, "a key that is not read": _other_key,
    "an equal object": _equal_object, "an equal function": _equal_function, "a cache": _cache,
    "a value that is made when it is first needed": _lazily, "which object, where None is asked for": _only_presence,
}  # fmt: skip


@pytest.mark.parametrize("backend", COMPILERS, ids=repr)
@pytest.mark.parametrize("name", SAME)
def test_what_makes_no_difference_is_not_traced_again(name: str, backend: Backend) -> None:
    fn, change = SAME[name]()
    run, x = px.compile(fn), px.ones((2,), device=backend)
    for value in (1.0, 2.0, 3.0):
        assert run(x).tolist() == [1.0, 1.0]
        change(value)
    assert run.traces == 1
