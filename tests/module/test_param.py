"""Parameters: when and from what they are made, their marks, their moves between backends.

Serves: phlox/module/deferred.py
"""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError
from phlox.module import no_initializers

BACKENDS: list[Backend] = [
    NumPy(),
    Jax(),
    Torch(),
    NumPy(float="f64"),
    Autodiff(NumPy()),
    Autodiff(Jax()),
    Autodiff(Torch()),
]


def values(module: px.Module) -> list[np.ndarray[Any, Any]]:
    return [param.val().numpy() for param in module.params()]


def same(left: px.Module, right: px.Module) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(values(left), values(right), strict=True))


def test_the_value_depends_on_seed_and_order_of_declaration_alone() -> None:
    px.random.seed(5)
    one = [nn.Linear(3, 4), nn.Linear(3, 4)]
    px.random.seed(5)
    other = [nn.Linear(3, 4), nn.Linear(3, 4)]
    other[1].weight.val()  # used in another order, and with draws in between
    px.random.normal((7,))
    assert same(one[0], other[0]) and same(one[1], other[1]) and not same(one[0], one[1])
    px.random.seed(6)
    assert not same(nn.Linear(3, 4), one[0])


def test_declaration_takes_as_many_positions_as_there_are_parameters() -> None:
    with px.random.stream(3) as stream:
        nn.Linear(3, 4)
        assert stream.position == 2
        nn.Linear(3, 4, bias=False).init()
        assert stream.position == 3  # making it draws from its own sub-stream


def test_init_with_a_seed() -> None:
    one, other = nn.Linear(3, 4).init(seed=7), nn.Linear(3, 4).init(seed=7)
    assert same(one, other) and not same(one, nn.Linear(3, 4).init(seed=8))
    assert one.params()[0].is_initialized
    before = values(one)
    one.init(seed=9)  # what is there stays
    np.testing.assert_array_equal(values(one)[0], before[0])


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_initial_weights_are_bit_identical_on_all_backends(backend: Backend) -> None:
    def model(device: Any) -> px.Module:
        return nn.Sequential(
            [nn.Conv2d(2, 3, 3, device=device), nn.Linear(5, 7, device=device), nn.Embedding(4, 6, device=device)]
        )

    px.random.seed(11)
    expected = model("numpy")
    px.random.seed(11)
    got = model(backend)
    assert all(param.device == backend.device() for param in got.params())
    for a, b in zip(values(expected), values(got), strict=True):
        # In float64 the same draws are scaled with less rounding.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 if backend is NumPy(float="f64") else 0)


def test_the_default_device_is_that_of_the_declaration() -> None:
    with px.default_device(NumPy(float="f64")):
        layer = nn.Linear(2, 2)
    assert layer.weight.device == NumPy(float="f64").device() and not layer.weight.is_initialized
    assert layer.weight.val().backend is NumPy(float="f64")


def test_no_initializers() -> None:
    layer, made = nn.Linear(2, 2), nn.Linear(2, 2).init(0)
    record = made.into_record()
    with no_initializers():
        made(px.ones((1, 2)))
        with pytest.raises(ModuleError, match=r"shape \(2, 2\).*load a record"):
            layer(px.ones((1, 2)))
        layer.load_record(record)
    assert same(layer, made)
    nn.Linear(2, 2)(px.ones((1, 2)))  # and not for ever


def test_a_parameter_is_made_once_by_many_threads() -> None:
    """All get one tensor: on a tape, each would otherwise be a leaf of its own, and gradients would be lost."""
    made = 0

    def slow(shape: Any, fans: Any, device: Any) -> px.Tensor:
        nonlocal made
        made += 1
        time.sleep(0.02)
        return px.random.normal(shape, device=device)

    param = px.Param.deferred((3,), slow, device=Autodiff(NumPy()))
    seen: list[Any] = []
    barrier = threading.Barrier(6)

    def ask() -> None:
        barrier.wait()
        seen.append(param.val())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == 1 and len(seen) == 6 and all(value is seen[0] for value in seen)


def test_a_parameter_that_cannot_be_made_can_be_made_later() -> None:
    fails = True

    def initializer(shape: Any, fans: Any, device: Any) -> px.Tensor:
        if fails:
            raise OSError("not yet")
        return px.ones(shape, device=device)

    param = px.Param.deferred((3,), initializer)
    with pytest.raises(OSError, match="not yet"):
        param.val()
    assert not param.is_initialized and param.is_deferred
    fails = False
    assert param.val().tolist() == [1.0, 1.0, 1.0] and not param.is_deferred


class Counted:
    """An initializer that counts."""

    runs = 0

    def __call__(self, shape: Any, fans: Any, device: Any) -> px.Tensor:
        Counted.runs += 1
        return px.random.normal(shape, device=device)


class Deferred(px.Module):
    def __init__(self, names: str = "abc") -> None:
        self.table = {name: px.Param.deferred((2, 2), Counted()) for name in names}
        self.tied = self.table["a"]


def test_loading_runs_no_initializer_and_nothing_is_made_before_its_time() -> None:
    Counted.runs = 0
    model = Deferred()
    assert model.num_params() == 12 and "a [2, 2] deferred" not in repr(model) and repr(model)
    assert [p.shape for p in model.params()] == [(2, 2)] * 3
    for view in (model.train(), model.freeze(), model.to_device("torch"), model.map(lambda path, p: p)):
        assert not any(p.is_initialized for p in view.params())
    assert Counted.runs == 0
    saved = Deferred().init(1).into_record()
    assert Counted.runs == 3  # the tied one once
    loaded = Deferred().load_record(saved)
    with no_initializers():
        loaded.into_record()
        Deferred().load_record(saved).to_device("jax").train()
    assert Counted.runs == 3
    repr(loaded)
    loaded.table["a"].val()
    loaded.init(2)
    assert Counted.runs == 3


def test_substreams_depend_on_place_and_order_of_declaration_only() -> None:
    with px.random.stream(5):
        whole = Deferred()
    with px.random.stream(5):
        other = Deferred()
        px.random.uniform((3,))
    for name in "cab":  # used in another order, on another device, within another stream
        with px.random.stream(99):
            other.table[name].to_device("torch").val()
            np.testing.assert_array_equal(other.table[name].val().numpy(), whole.table[name].val().numpy())
    seeded = [Deferred().init(3), Deferred().to_device("torch").init(3), Deferred("abcd").init(3)]
    for twin in seeded:
        for name in "abc":
            np.testing.assert_array_equal(twin.table[name].val().numpy(), seeded[0].table[name].val().numpy())
    assert not np.array_equal(seeded[0].table["a"].val().numpy(), seeded[0].table["b"].val().numpy())


def test_a_deferred_parameter_cannot_be_made_inside_a_raw_transformation() -> None:
    import jax

    layer = nn.Linear(2, 2, device=Jax().device())
    with pytest.raises(ModuleError, match=r"call model\.init\(\) before"):
        jax.jit(lambda x: layer(px.Tensor.from_primitive(x, Jax())).primitive)(np.ones((1, 2), np.float32))


def test_bad_values() -> None:
    with pytest.raises(ModuleError, match="holds a tensor, got ndarray"):
        px.Param(np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(ModuleError, match=r"cannot have the shape \(-1, 2\)"):
        nn.Linear(-1, 2)
    param = px.Param(px.ones((3,)))
    with pytest.raises(ModuleError, match=r"\(3,\).*\(2,\)"):
        param.set(px.ones((2,)))
    with pytest.raises(ModuleError, match="kind Float cannot take a value of Int"):
        param.set(px.arange(3))
    wrong = px.Param.deferred((3,), lambda shape, fans, device: px.ones((2,), device=device))
    with pytest.raises(ModuleError, match=r"gave shape \(2,\) for a parameter of shape \(3,\)"):
        wrong.val()
    with pytest.raises(ModuleError, match="weight: a mapper must return a Param, got Tensor"):
        nn.Linear(2, 2).map(lambda path, p: p.val())  # type: ignore[arg-type, return-value]


def test_a_value_from_inside_a_trace_does_not_get_out() -> None:
    import jax

    param = px.Param(px.ones((2,), device=Jax().device()))

    def leak(x: Any) -> Any:
        param.set(px.Tensor.from_primitive(x, Jax()))
        return x

    with pytest.raises(ModuleError, match="pass its module to the function as an argument"):
        jax.jit(leak)(np.ones(2, np.float32))
    np.testing.assert_array_equal(param.val().numpy(), [1, 1])


class _Counting(px.Module):
    """A layer with running statistics of its own."""

    def __init__(self, device: Any) -> None:
        self.scale = px.Param(px.ones((2,), device=device))
        self.mean = px.Param(px.zeros((2,), device=device), trained=False)

    def __call__(self, x: Any) -> Any:
        self.mean.set(self.mean.val() * 0.5 + x.mean(0) * 0.5)
        return (x * self.scale.val() - self.mean.val()).square()


WITHIN: dict[str, Any] = {
    "nothing": lambda m, x: m(x),
    "grad": lambda m, x: px.grad(lambda x: m(x).sum())(x),
    "grad of a module": lambda m, x: px.grad(lambda m: m(x).sum())(m),
    "vjp": lambda m, x: px.vjp(m, x)[1](x)[0],
    "jvp": lambda m, x: px.jvp(m, (x,), (x,))[1],
    "hessian": lambda m, x: px.hessian(lambda x: m(x).sum())(x),
    "both": lambda m, x: px.grad(lambda x: px.value_and_grad(lambda m: m(x).sum())(m)[0])(x),
    "checkpoint": lambda m, x: px.grad(lambda x: px.checkpoint(m)(x).sum())(x),
}


@pytest.mark.parametrize("within, tape, compiled", [
    *((within, True, compiled) for within in WITHIN for compiled in (False, True)),
    *((within, False, False) for within in WITHIN if within not in ("grad of a module", "both")),
])  # fmt: skip
def test_what_is_set_inside_a_derivative_stays_on_the_backend_of_the_parameter(
    within: str, tape: bool, compiled: bool
) -> None:
    engine = Jax() if compiled else NumPy()
    model = _Counting(engine.device())
    model = model.train() if tape else model
    x = px.tensor([[1.0, 2.0], [3.0, 5.0]], device=engine)
    (px.compile(WITHIN[within]) if compiled else WITHIN[within])(model, x)
    assert model.mean.val().tolist() == [1.0, 1.75]
    assert model.mean.backend is model.scale.backend is (Autodiff(engine) if tape else engine)


def test_only_floats_are_trained() -> None:
    count = px.Param(px.arange(3))
    assert not count.trained and not count.trainable
    count.set_trained(True)
    assert not count.trained
    assert not px.Param(px.ones((2,)), trained=False).trained


class Normed(px.Module):
    def __init__(self, device: Any = None) -> None:
        self.layer = nn.Linear(2, 2, device=device)
        self.running = px.Param(px.zeros((2,), device=device), trained=False)


def test_freezing_and_back() -> None:
    model = Normed(Autodiff(NumPy()).device())
    frozen = model.freeze()
    assert [p.trained for p in model.params()] == [True, True, False]
    assert [p.trained for p in frozen.params()] == [False, False, False]
    assert not any(p.val().is_require_grad() for p in frozen.params())
    again = frozen.unfreeze()
    assert [p.trained for p in again.params()] == [True, True, False]  # running statistics stay what they are
    assert again.layer.weight.val().is_require_grad() and not again.running.val().is_require_grad()
    assert [p.id for p in again.params()] == [p.id for p in model.params()]
    import jax

    for twin in (jax.tree.map(lambda x: x, frozen), pickle.loads(pickle.dumps(frozen))):  # noqa: S301
        assert [p.trained for p in twin.unfreeze().params()] == [True, True, False]


@pytest.mark.parametrize("target", BACKENDS, ids=repr)
@pytest.mark.parametrize("source", BACKENDS, ids=repr)
def test_moves_between_all_backends(source: Backend, target: Backend) -> None:
    model = Normed(source.device())
    moved = model.to_device(target)
    assert all(not p.is_initialized for p in moved.layer.params())  # deferred ones stay so
    moved = model.init(3).to_device(target)
    for before, after in zip(model.params(), moved.params(), strict=True):
        assert after.device == target.device() and after.id == before.id and after.trained == before.trained
        np.testing.assert_allclose(before.val().numpy(), after.val().numpy(), rtol=1e-6)
        assert after.val().is_require_grad() == (target.differentiates and after.trained)


@pytest.mark.parametrize("inner", [NumPy(), Jax(), Torch()], ids=repr)
def test_views_for_training_and_validation_share_their_arrays(inner: Backend) -> None:
    model = nn.Sequential([nn.Linear(3, 2), nn.Dropout(0.5)]).init(0, device=inner)
    training = model.train()
    assert training.layers[0].weight.val().backend is Autodiff(inner)
    back = training.valid()
    assert back.layers[0].weight.val().primitive is model.layers[0].weight.val().primitive
    assert training.train().layers[0].weight.val().backend is Autodiff(inner)  # one tape is enough
    assert model.valid().layers[0].weight.val().backend is inner
    x = px.ones((4, 3), device=inner)
    np.testing.assert_array_equal(back(x).numpy(), model(x).numpy())
    assert (training(px.Tensor.from_inner(px.ones((40, 3), device=inner))).numpy() == 0).any()


def test_views_of_deferred_modules() -> None:
    px.random.seed(1)
    model = nn.Linear(2, 2, device=Autodiff(NumPy()).device())
    view = model.valid()
    assert not view.weight.is_initialized
    np.testing.assert_array_equal(view.weight.val().numpy(), model.weight.val().numpy())


@pytest.mark.parametrize("size", ["a", 2.0, -1])
def test_a_wrong_size_is_refused_where_it_is_declared(size: Any) -> None:
    with pytest.raises(ModuleError, match="sizes are integers of at least zero"):
        nn.Linear(size, 2)
