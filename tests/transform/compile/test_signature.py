"""What goes into a compiled function and comes out of it, of every sort; checked against the plain call.

Serves: phlox/transform/compile/outputs.py
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phlox as px
from phlox import nn, optim
from phlox.backend import Jax
from phlox.errors import CompileError
from tests.transform.steps import TAPE, close, data, network, step

JAX = Jax()
X = px.tensor([1.0, 2.0, 3.0], device=JAX)


@dataclass(frozen=True)
class Frozen:
    x: Any
    scale: float
    rest: tuple[Any, ...] = ()


@dataclass
class Open:
    inner: Frozen
    name: str = "n"
    made: list[Any] = field(default_factory=list[Any], init=False)


@dataclass(frozen=True, slots=True)
class Slots:
    x: Any


@dataclass(frozen=True)
class Setting:
    size: int


class Pair(NamedTuple):
    a: Any
    b: Any


def test_dataclasses_of_tensors_are_containers() -> None:
    def grown(value: Open, slots: Slots) -> Any:
        inner = Frozen(value.inner.x * value.inner.scale + slots.x, 2.0, (value.inner.rest[0] + 1.0, "c"))
        result = Open(inner, value.name)
        result.made = [slots.x]
        return result, Slots(slots.x * 2.0)

    run = px.compile(grown)
    for scale in (2.0, 3.0):
        value = Open(Frozen(X, scale, (X * 4.0,)))
        (got, slots), (expected, other) = run(value, Slots(X)), grown(value, Slots(X))
        assert type(got) is Open and type(got.inner) is Frozen and (got.name, got.inner.scale) == ("n", 2.0)
        np.testing.assert_array_equal(got.inner.x.numpy(), expected.inner.x.numpy())
        np.testing.assert_array_equal(got.inner.rest[0].numpy(), expected.inner.rest[0].numpy())
        np.testing.assert_array_equal(got.made[0].numpy(), X.numpy())
        np.testing.assert_array_equal(slots.x.numpy(), other.x.numpy())
    assert run.programs == 1  # the scale is a number
    sized = px.compile(lambda x, setting: px.zeros((setting.size,), device=x.device))
    assert sized(X, Setting(2)).shape == (2,) and sized(X, Setting(3)).shape == (3,)  # a setting is a constant
    anything: Any = run
    with pytest.raises(CompileError, match="a dataclass that holds no tensors must be frozen"):
        anything(X, Open(Frozen(1.0, 2.0)))


def test_modules_and_optimizers_in_dataclasses() -> None:
    @dataclass
    class State:
        model: Any
        optimizer: Any

    def train(state: State, x: Any) -> Any:
        model, loss = step(state.model, state.optimizer, 0.1, x)
        return model, loss

    run = px.compile(train, donate="state")
    state = State(network(rate=0.0), optim.AdamWConfig().init())
    eager = State(network(rate=0.0), optim.AdamWConfig().init())
    for _ in range(3):
        state.model, _ = run(state, data())
        eager.model, _ = train(eager, data())
    close(state.model, eager.model)
    assert run.programs == 1


def test_every_sort_of_parameter() -> None:
    def sums(a: Any, /, b: Any = 2.0, *rest: Any, c: Any, d: Any = 1.0, **more: Any) -> Any:
        return a * b + sum(rest, start=a) * c + d + more.get("e", 0.0)

    run: Any = px.compile(sums)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {"c": 1.0}), ((X, 3.0), {"c": 2}), ((X, X, X, X), {"c": X, "d": 5.0}),
        ((X,), {"b": X, "c": 1.0, "e": X}),
    ]  # fmt: skip
    for arguments, keywords in calls:
        np.testing.assert_allclose(run(*arguments, **keywords).numpy(), sums(*arguments, **keywords).numpy())
    assert run.__name__ == "sums"
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'c'"):
        run(X)
    np.testing.assert_array_equal(px.compile(partial(sums, c=1.0))(X, 3.0).numpy(), sums(X, 3.0, c=1.0).numpy())


def test_numbers_of_numpy_are_numbers_and_arrays_are_not() -> None:
    run = px.compile(lambda x, n: x * n)
    for number in (2.0, np.float32(2.0), np.float64(2.0), np.array(2.0)):
        np.testing.assert_array_equal(run(X, number).numpy(), 2.0 * X.numpy())
    for number in (2, np.int32(2), np.array(2)):
        np.testing.assert_array_equal(run(X, number).numpy(), 2.0 * X.numpy())
    assert run.programs == 2 and run.traces == 2
    np.testing.assert_array_equal(run(X, np.full(X.shape, 2.0)).numpy(), 2.0 * X.numpy())
    assert run.programs == 3


def test_methods_and_callable_objects() -> None:
    class Model(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(3, 2, device=JAX.device())

        def __call__(self, x: Any, scale: float = 1.0) -> Any:
            return self.layer(x) * scale

        @staticmethod
        def twice(x: Any) -> Any:
            return x * 2.0

        @classmethod
        def named(cls, x: Any) -> Any:
            return x, cls.__name__

    model = Model().init(0)
    np.testing.assert_array_equal(px.compile(model)(X, scale=2.0).numpy(), (model(X) * 2.0).numpy())
    np.testing.assert_array_equal(px.compile(model.twice)(X).numpy(), 2.0 * X.numpy())
    assert px.compile(model.named)(X)[1] == "Model"


@pytest.mark.full
def test_what_is_nested_is_inlined() -> None:
    inner = px.compile(step, donate=("model", "optimizer"))

    def twice(model: Any, optimizer: Any, x: Any) -> Any:
        middle, first = inner(model, optimizer, 0.1, x)
        kept = model.params()[0].val()  # an inner donation takes nothing away
        model, second = inner(middle, optimizer, 0.1, x)
        return model, first + second, kept.sum()

    outer = px.compile(twice)
    results: list[Any] = []
    for run in (twice, outer):
        model, optimizer = network(), optim.AdamWConfig().init()
        with px.random.stream(3) as stream:
            if run is twice:
                plain = px.compile(step)
                middle, first = plain(model, optimizer, 0.1, data())
                kept = model.params()[0].val().sum()
                model, second = plain(middle, optimizer, 0.1, data())
                results.append((model, first.item() + second.item(), kept.item(), stream.position, optimizer))
            else:
                model, loss, kept = outer(model, optimizer, data())
                results.append((model, loss.item(), kept.item(), stream.position, optimizer))
    close(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1:4], results[1][1:4], rtol=1e-4)
    assert [one["time"] for one in results[1][4].states.values()] == [2] * 4
    assert inner.programs == 0 and outer.programs == 1


class Reader:
    """Counts how often somebody waits for a value."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        kind: Any = type(jax.numpy.ones(()))

        def watched(name: str) -> None:
            old = getattr(kind, name)

            def method(array: Any, *args: Any, **kwargs: Any) -> Any:
                self.read += 1
                return old(array, *args, **kwargs)

            monkeypatch.setattr(kind, name, method)

        to_host = Jax.to_host

        def to_host_watched(backend: Any, array: Any) -> Any:
            self.read += 1
            return to_host(backend, array)

        monkeypatch.setattr(Jax, "to_host", to_host_watched)
        for name in ("__array__", "block_until_ready", "__float__", "__int__", "__bool__", "item", "tolist"):
            watched(name)


@pytest.mark.parametrize("steps", [None, 3])
def test_a_call_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, steps: int | None) -> None:
    run = px.compile(step, donate=("model", "optimizer"), steps=steps, over=() if steps is None else ("x",))
    model, optimizer = network(), optim.AdamWConfig().init()
    x = data() if steps is None else px.stack([data()] * steps)
    model, loss = run(model, optimizer, 0.1, x)
    reader = Reader(monkeypatch)
    with px.debug.explain_recompiles():
        for number in range(4):
            model, loss = run(model, optimizer, 0.1 * number, x)
        other = px.stack([data(np.ones((3, 4), np.float32))] * (steps or 1))
        model, loss = run(model, optimizer, 0.1, other if steps else other[0])  # another shape
    assert reader.read == 0
    assert np.isfinite(loss.numpy()).all() and reader.read > 0  # the watch works
    assert optimizer.states[model.params()[0].id]["time"] == (6 * steps if steps else 6)


# --- anything, in any containers


class Counter(px.Module):
    """Counts calls in a Param, and keeps a running sum."""

    def __init__(self) -> None:
        self.weight = px.Param(px.tensor([1.0, -2.0, 0.5], device=TAPE))
        self.sum = px.Param(px.zeros((3,), device=TAPE), trained=False)
        self.calls = px.Param(px.tensor(0, device=TAPE))

    def __call__(self, x: Any) -> Any:
        self.sum.set(self.sum.val() + x)
        self.calls.set(self.calls.val() + 1)
        return x * self.weight.val() + px.random.uniform((3,), device=x.device)


leaf = st.one_of(
    st.sampled_from(["tensor", "module", "name", None, True]),
    st.floats(-2, 2, width=16),
    st.integers(-3, 3),
)
structures = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(lambda x: Frozen("tensor", 0.5, (x,)), inner),
        st.builds(lambda x: OrderedDict(z=x, a="tensor"), inner),
    ),
    max_leaves=6,
)


def grown(shape: Any, module: Any) -> Any:
    """A structure with tensors and modules where it says so."""
    kind: Any = type(shape)
    if shape == "tensor" and kind is str:
        return px.tensor([1.0, 2.0, 3.0], device=TAPE)
    if shape == "module" and kind is str:
        return module
    if isinstance(shape, Frozen):
        return Frozen(grown(shape.x, module), shape.scale, grown(shape.rest, module))
    if isinstance(shape, tuple):
        parts = [grown(part, module) for part in shape]
        return kind(*parts) if kind is Pair else tuple(parts)
    if isinstance(shape, list):
        return [grown(part, module) for part in shape]
    return kind((key, grown(part, module)) for key, part in shape.items()) if isinstance(shape, dict) else shape


def turned(value: Any, x: Any) -> Any:
    """Something of every part, and changes to the modules."""
    kind: Any = type(value)
    if isinstance(value, px.Module):
        return value(x)
    if isinstance(value, px.Tensor):
        return value * 2.0 + px.random.normal((3,), device=x.device)
    if kind in (int, float) or (getattr(value, "ndim", None) == 0):
        return x * value
    if isinstance(value, Frozen):
        return Frozen(turned(value.x, x), 1.0, turned(value.rest, x))
    if isinstance(value, tuple):
        parts = [turned(part, x) for part in value]
        return kind(*parts) if kind is Pair else tuple(parts)
    if isinstance(value, list):
        return [turned(part, x) for part in value]
    return kind((key, turned(part, x)) for key, part in value.items()) if isinstance(value, dict) else value


def same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(got, px.Tensor):
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)
    elif isinstance(got, Frozen):
        same((got.x, got.scale, got.rest), (expected.x, expected.scale, expected.rest))
    elif isinstance(got, (list, tuple)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            same(one, other)
    elif isinstance(got, dict):
        assert list(got) == list(expected)
        for key in got:
            same(got[key], expected[key])
    else:
        assert got == expected


@pytest.mark.full
@settings(max_examples=15, deadline=None)
@given(structures)
def test_anything_means_the_same(shape: Any) -> None:
    run = px.compile(turned)
    module, other = Counter(), Counter()
    expected = got = None
    x = px.tensor([0.5, 1.5, -1.0], device=TAPE)
    with px.random.stream(1) as stream, px.random.stream(stream):
        for _ in range(2):
            expected = turned(grown(shape, module), x)
        position = stream.position
    with px.random.stream(1) as stream:
        for _ in range(2):
            got = run(grown(shape, other), x)
        assert stream.position == position
    same(got, expected)
    for mine, theirs in zip(other.params(), module.params(), strict=True):
        np.testing.assert_allclose(mine.val().numpy(), theirs.val().numpy(), rtol=1e-6)
    assert run.traces == 1


@pytest.mark.parametrize("shape", ["pair", "arguments"])
def test_a_module_that_is_given_twice_is_one(shape: str) -> None:
    def both(pair: Any, x: Any) -> Any:
        return pair[0](x), pair[1](x)

    def apart(first: Any, second: Any, x: Any) -> Any:
        return first(x), second(x)

    chosen: Any = both if shape == "pair" else apart
    run: Any = px.compile(chosen)
    x = px.tensor([0.5, 1.5, -1.0], device=TAPE)
    one, two, other = Counter(), Counter(), Counter()

    def call(first: Any, second: Any) -> None:
        run((first, second), x) if shape == "pair" else run(first, second, x)

    for _ in range(3):
        call(one, one)
    assert one.calls.val().item() == 6
    call(two, other)
    call(two, other)
    call(two, two)
    assert (two.calls.val().item(), other.calls.val().item()) == (4, 2)
    assert run.traces == 2
