"""The tape: what it keeps and for how long, threads, leaves, several tapes at once."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import phlox as px
from phlox.autodiff import Node
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import AutodiffError, BackendError, KindError, PhloxError, ShapeError

TAPES = [Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]
F64 = Autodiff(NumPy(float="f64"))


class Pair(NamedTuple):
    first: Any
    second: list[Any]


def leaf(values: Any, backend: Any = F64) -> px.Tensor:
    return px.tensor(values, device=backend).require_grad()


def nodes() -> int:
    return sum(type(found) is Node for found in gc.get_objects())


class Tracer(np.ndarray[Any, Any]):
    """An array that can be referred to weakly."""


def traced(values: Any) -> Any:
    return np.asarray(values, np.float64).view(Tracer)


@pytest.mark.full
def test_a_million_operations_neither_overflow_nor_leak() -> None:
    gc.collect()
    before = nodes()
    x = leaf(1.0)
    y = x
    for _ in range(1_000_000):
        y = y + 0.5
    grads = y.backward()
    assert y.item() == 500_001.0
    gradient = x.grad(grads)
    assert gradient is not None and gradient.item() == 1.0
    del x, y, grads, gradient
    gc.collect()
    assert nodes() == before


def test_a_long_chain_is_dropped_without_backward() -> None:
    gc.collect()
    before = nodes()
    y = leaf(1.0)
    for _ in range(200_000):
        y = -y
    del y
    gc.collect()
    assert nodes() == before


def test_a_graph_without_backward_is_freed_at_once() -> None:
    gc.disable()  # counting references must be enough
    try:
        saved = traced([1.0, 2.0])
        alive = weakref.ref(saved)
        x = px.Tensor.from_primitive(saved, F64, px.Float).require_grad()
        y = x.exp() * x
        del x, saved
        assert alive() is not None
        del y
        assert alive() is None
    finally:
        gc.enable()


def test_what_no_derivative_needs_is_not_kept() -> None:
    value = traced([1.0, 2.0])
    alive = weakref.ref(value)
    x = leaf([1.0, 1.0])
    y = (x + px.Tensor.from_primitive(value, F64, px.Float)).sum()
    del value
    assert alive() is None
    found = x.grad(y.backward())
    assert found is not None and found.tolist() == [1.0, 1.0]


def test_backward_frees_what_the_graph_saved() -> None:
    value = traced([1.0, 2.0])
    alive = weakref.ref(value)
    x = leaf([3.0, 4.0])
    y = (x * px.Tensor.from_primitive(value, F64, px.Float)).sum()
    del value
    assert alive() is not None
    y.backward(retain_graph=True)
    assert alive() is not None
    y.backward()
    assert alive() is None
    assert y.item() == 11.0


@pytest.mark.parametrize("backend", TAPES, ids=repr)
def test_a_second_backward_must_be_announced(backend: Any) -> None:
    x = leaf([1.0, 2.0], backend)
    y = x.square().sum()
    first = x.grad(y.backward(retain_graph=True))
    second = x.grad(y.backward())
    assert first is not None and second is not None
    assert first.tolist() == second.tolist() == [2.0, 4.0]
    with pytest.raises(AutodiffError, match="retain_graph=True"):
        y.backward()


def test_a_second_backward_through_a_shared_part_must_be_announced() -> None:
    x = leaf([1.0, 2.0])
    shared = x.exp()
    shared.sum().backward()
    with pytest.raises(AutodiffError, match="retain_graph=True"):
        (shared * 2.0).sum().backward()
    assert x.exp().sum().backward() is not None  # the leaf itself is as good as new


def test_gradients_of_several_uses_add_up() -> None:
    x = leaf([1.0, 2.0, 3.0])
    y = x * x + x.exp() + x[1:].sum() * x
    found = x.grad(y.sum().backward())
    v = np.array([1.0, 2.0, 3.0])
    assert found is not None
    np.testing.assert_allclose(found.numpy(), 2 * v + np.exp(v) + 5.0 + 6.0 * np.array([0.0, 1.0, 1.0]))


def test_leaves_without_a_part_have_no_gradient() -> None:
    x, z = leaf([1.0]), leaf([2.0])
    grads = (x * 2.0).sum().backward()
    assert z.grad(grads) is None
    assert (x * 2.0).grad(grads) is None  # no leaf
    assert px.tensor([1.0], device=F64).grad(grads) is None
    assert len(grads) == 1 and "1 leaves" in repr(grads)


def test_require_grad_cuts_the_history() -> None:
    x = leaf([2.0])
    y = (x * 3.0).require_grad()
    grads = (y * y).sum().backward()
    found = y.grad(grads)
    assert found is not None and found.tolist() == [12.0]
    assert x.grad(grads) is None
    assert (x * 3.0).is_require_grad() and not (x * 3.0).detach().is_require_grad()
    assert x.inner().backend is F64.inner and x.inner().tolist() == [2.0]


@pytest.mark.parametrize("backend", TAPES, ids=repr)
def test_a_root_of_several_elements_needs_a_cotangent(backend: Any) -> None:
    x = leaf([[1.0, 2.0], [3.0, 4.0]], backend)
    y = x * x
    with pytest.raises(AutodiffError, match=r"\(2, 2\).*cotangent"):
        y.backward()
    weights = px.tensor([[1.0, 0.0], [0.0, -1.0]], device=backend.inner)
    with pytest.raises(ShapeError, match=r"cotangent must be of shape \(2, 2\)"):
        y.backward(weights[0])
    with pytest.raises(ShapeError, match="on Autodiff"):
        y.backward(px.tensor([[1.0, 0.0], [0.0, -1.0]], device=backend))
    found = x.grad(y.backward(weights))
    assert found is not None and found.tolist() == [[2.0, 0.0], [0.0, -8.0]]


def test_roots_of_one_element_need_none() -> None:
    x = leaf([[3.0]])
    found = x.grad((x * x).backward())
    assert found is not None and found.tolist() == [[6.0]]
    alone = x.grad(x.backward())
    assert alone is not None and alone.tolist() == [[1.0]]


def test_ints_and_bools_are_as_on_the_inner_backend() -> None:
    x = leaf([1.0, -2.0])
    for y in (x.int(), x > 0.0, x.argmax(0), x.isnan(), x.bool()):
        assert not y.is_require_grad() and isinstance(y.primitive, (np.ndarray, np.generic))
    assert isinstance((px.arange(3, device=F64) + 1).primitive, np.ndarray)
    assert isinstance((px.ones((3,), device=F64) * 2.0).primitive, np.ndarray)  # floats of no leaf, too
    with pytest.raises(KindError, match=r"\.float\(\)"):
        px.arange(3, device=F64).require_grad()
    selected = x[px.tensor([1, 1], device=F64)]
    found = x.grad(selected.sum().backward())
    assert found is not None and found.tolist() == [0.0, 2.0]


def test_without_a_tape_there_is_nothing_to_differentiate() -> None:
    with pytest.raises(AutodiffError, match=r"require_grad"):
        px.ones((), device=F64).backward()
    plain = px.ones((), device=NumPy())
    for call in (plain.require_grad, plain.backward):
        with pytest.raises(AutodiffError, match=r"Autodiff\(NumPy\(\)\)"):
            call()
    with pytest.raises(BackendError, match="inner"):
        plain.inner()
    x = leaf([1.0], Autodiff(NumPy()))
    found = x.backward(retain_graph=True)
    with pytest.raises(
        BackendError, match=r"the gradients are on Autodiff\(NumPy\(\)\), but the tensor is on NumPy\(\)"
    ):
        plain.grad(found)
    assert leaf([1.0]).grad(found) is None  # of another backend, and so it might have been one's own


@pytest.mark.parametrize("backend", [NumPy(), Torch()], ids=repr)
def test_threads_do_not_meet(backend: Any) -> None:
    tape = Autodiff(backend)
    shared = leaf(np.arange(1.0, 9.0), tape)
    together = threading.Barrier(8)

    def work(n: int) -> bool:
        if n < 8:
            together.wait()
        y = (shared * float(n) + shared.square()).sum()
        found = shared.grad(y.backward())
        assert found is not None
        return bool(np.allclose(found.numpy(), n + 2.0 * np.arange(1.0, 9.0)))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(600)))


def test_threads_share_a_graph() -> None:
    x = leaf(np.arange(1.0, 9.0))
    y = x.exp().sum()

    def work(_: int) -> bool:
        found = x.grad(y.backward(retain_graph=True))
        return found is not None and bool(np.allclose(found.numpy(), np.exp(np.arange(1.0, 9.0))))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


# --- tapes above tapes


def test_three_tapes() -> None:
    twice = Autodiff(F64)
    a = leaf(2.0)
    b = px.Tensor.from_inner(a).require_grad()
    c = px.Tensor.from_inner(b).require_grad()
    assert c.backend is Autodiff(twice)
    first = c.grad((c**4).backward())
    assert first is not None and first.item() == 32.0
    second = b.grad(first.backward())
    assert second is not None and second.item() == 48.0
    third = a.grad(second.backward())
    assert third is not None and third.item() == 48.0


def test_inner_keeps_the_history_of_the_tape_below() -> None:
    a = leaf(3.0)
    b = px.Tensor.from_inner(a).require_grad()
    y = (b * b).inner() * a  # a^2 a, of which the upper tape knows nothing
    found = a.grad(y.backward())
    assert found is not None and found.item() == 27.0
    assert not (b * b).detach().is_require_grad()


# --- functions of the engines


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_lifted_functions_are_differentiated_by_their_engine(backend: Any) -> None:
    import jax
    import torch

    softplus = px.lift({"jax": jax.nn.softplus, "torch": torch.nn.functional.softplus}[backend.name])
    values = np.array([-1.0, 0.5, 2.0], np.float32)
    plain = softplus(px.tensor(values, device=backend))
    np.testing.assert_allclose(plain.numpy(), np.logaddexp(values, 0), rtol=1e-6)

    x = leaf(values, Autodiff(backend))
    y = softplus(x * 2.0)
    assert y.is_require_grad()
    found = x.grad(y.sum().backward())
    sigmoid = 1.0 / (1.0 + np.exp(-2.0 * values))
    assert found is not None
    np.testing.assert_allclose(found.numpy(), 2.0 * sigmoid, rtol=1e-5)

    below = leaf(values, Autodiff(backend))
    above = px.Tensor.from_inner(below).require_grad()
    first = above.grad(softplus(above * 2.0).sum().backward())
    assert first is not None
    second = below.grad(first.sum().backward())
    assert second is not None
    np.testing.assert_allclose(second.numpy(), 4.0 * sigmoid * (1.0 - sigmoid), rtol=1e-5)


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_lifted_functions_of_several_arguments(backend: Any) -> None:
    scaled = px.lift(lambda x, weight, power: x**power * weight)
    x, weight = leaf([1.0, 2.0], Autodiff(backend)), leaf([3.0, 4.0], Autodiff(backend))
    y = scaled(x, weight, 2)
    grads = y.sum().backward()
    dx, dw = x.grad(grads), weight.grad(grads)
    assert dx is not None and dx.tolist() == [6.0, 16.0]
    assert dw is not None and dw.tolist() == [1.0, 4.0]
    constant = px.tensor([3.0, 4.0], device=Autodiff(backend))
    only = x.grad(scaled(x, constant, 2).sum().backward())
    assert only is not None and only.tolist() == [6.0, 16.0]
    indices = px.tensor([1, 0, 1], device=Autodiff(backend))
    picked = x.grad(px.lift(lambda x, i: x[i] * x[i])(x, indices).sum().backward())
    assert picked is not None and picked.tolist() == [2.0, 8.0]
    halves = px.lift(lambda x: (x[:1], {"rest": x[1:]}))(constant)
    assert halves[0].tolist() == [3.0] and halves[1]["rest"].tolist() == [4.0]


@pytest.mark.parametrize("backend", [Jax(), Jax(float="f64"), Torch()], ids=repr)
def test_lifted_functions_with_several_results(backend: Any) -> None:
    """Each is differentiated, once and again, by one call of the engine's own derivative; indices have none."""
    calls: list[int] = []

    def fn(x: Any, weight: Any) -> Any:
        calls.append(1)
        return x**3, {"sum": (x * weight).sum(), "place": x.argmax()}, [weight * 2.0]

    x, weight = leaf([1.0, 2.0], Autodiff(backend)), leaf([3.0, 4.0], Autodiff(backend))
    cube, named, (twice,) = px.lift(fn)(x, weight)
    assert named["place"].item() == 1 and not named["place"].is_require_grad()
    grads = (cube.sum() + named["sum"] * 2.0).backward(retain_graph=True)  # nothing comes from the last
    dx, dw = x.grad(grads), weight.grad(grads)
    assert dx is not None and dx.tolist() == [9.0, 20.0]
    assert dw is not None and dw.tolist() == [2.0, 4.0]
    assert len(calls) == 1  # what the engine has kept of the call is differentiated
    found = weight.grad(twice.sum().backward())
    assert found is not None and found.tolist() == [2.0, 2.0]

    pair = px.lift(lambda x: Pair(x * 2.0, [x * 3.0]))(x)
    assert isinstance(pair, Pair) and pair.second[0].tolist() == [3.0, 6.0]

    plain = px.tensor([1.0, 2.0], device=backend)
    second = px.grad(lambda x: px.grad(lambda x: px.lift(fn)(x, x)[0].sum())(x).square().sum())(plain)
    np.testing.assert_allclose(second.numpy(), [36.0, 288.0], rtol=1e-6)  # of 9 x^4


def test_lifted_functions_on_numpy_have_values_but_no_gradients() -> None:
    cbrt = px.lift(np.cbrt)
    assert cbrt(px.tensor([8.0])).tolist() == [2.0]
    assert cbrt(px.tensor([8.0], device=F64)).tolist() == [2.0]
    x = leaf([8.0])
    with pytest.raises(AutodiffError, match=r"NumPy\(float='f64'\).*no autodiff"):
        cbrt(x).sum().backward()


def test_lifted_functions_need_a_tensor_and_one_backend() -> None:
    add = px.lift(lambda x, y: x + y)
    with pytest.raises(KindError, match="without a tensor"):
        add(1.0, 2.0)
    with pytest.raises(BackendError, match="different backends"):
        add(px.ones((2,)), px.ones((2,), device=F64))
    assert issubclass(AutodiffError, PhloxError)
    assert px.lift(np.cbrt) == px.lift(np.cbrt) and hash(px.lift(np.cbrt)) == hash(px.lift(np.cbrt))


# --- gradients while an engine records


@pytest.mark.full
def test_the_tape_under_a_compiler() -> None:
    import jax

    def gradient(x: Any) -> Any:
        w = px.Tensor.from_primitive(x, Autodiff(Jax()), px.Float).require_grad()
        found = w.grad((w.tanh() * w).sum().backward())
        assert found is not None
        return found.primitive

    values = np.array([0.5, -1.0], np.float32)
    wanted = jax.grad(lambda x: (jax.numpy.tanh(x) * x).sum())(values)
    np.testing.assert_allclose(jax.jit(gradient)(values), wanted, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(gradient)(values[:, None])[:, 0], wanted, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jacfwd(lambda x: gradient(x).sum())(values), jax.grad(lambda x: gradient(x).sum())(values), rtol=1e-6
    )
