"""The strategy that keeps no cheap value: the same gradients, to the last bit, from less memory."""

from __future__ import annotations

import gc
import pickle
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.testing.conformance import running
from phlox.testing.conformance.rows import ROWS

DIFFERENTIABLE = [row for row in ROWS if any(running.differentiable(row, sample) for sample in row.samples)]


def gradients(row: Any, sample: Any, tape: Backend) -> list[Any]:
    arguments = running.tensors(sample, tape)
    for place in running.differentiable(row, sample):
        arguments[place] = arguments[place].require_grad()
    y = row.call(*arguments)
    if not y.is_require_grad():
        return []
    grads = y.backward(px.tensor(running.cotangent(y.shape), device=tape.inner))
    return [arguments[place].grad(grads) for place in running.differentiable(row, sample)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=str)
def test_every_operation_has_the_same_gradient(row: Any) -> None:
    engine = NumPy(float="f64")
    sample = next(sample for sample in row.samples if running.differentiable(row, sample))
    with np.errstate(all="ignore"):
        plain = gradients(row, sample, Autodiff(engine))
        found = gradients(row, sample, Autodiff(engine, recompute=True))
    for wanted, got in zip(plain, found, strict=True):
        assert (wanted is None) == (got is None)
        if wanted is not None:
            np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def deep(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = ((x @ w).tanh() * 2.0 + 1.0).gelu().exp().clip(0.0, 3.0).reshape(-1, w.shape[0])
    return x.sum()


@pytest.mark.parametrize("engine", [NumPy(), Jax(), Torch()], ids=repr)
def test_a_network_has_the_same_gradients(engine: Any) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 6)), rng.normal(size=(6, 6)) * 0.3
    found: list[list[Any]] = []
    for tape in (Autodiff(engine), Autodiff(engine, recompute=True)):
        x, w = (px.tensor(v, device=tape).require_grad() for v in values)
        grads = deep(x, w).backward()
        found.append([leaf.grad(grads).numpy() for leaf in (x, w)])  # pyright: ignore[reportOptionalMemberAccess]
    for wanted, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_second_derivatives() -> None:
    lower = Autodiff(NumPy(float="f64"), recompute=True)
    a = px.tensor([0.3, -1.2], device=lower).require_grad()
    b = px.Tensor.from_inner(a).require_grad()
    first = b.grad((b.sin() * b.exp()).sum().backward())
    assert first is not None
    second = a.grad(first.sum().backward())
    assert second is not None
    np.testing.assert_allclose(second.numpy(), 2.0 * np.cos(a.numpy()) * np.exp(a.numpy()), rtol=1e-14)


def peak(tape: Backend) -> int:
    x = px.ones((200, 1000), device=tape).require_grad()
    w = px.eye(1000, device=tape)
    gc.collect()
    tracemalloc.start()
    try:
        y = x
        for _ in range(5):
            y = y @ w
            for _ in range(10):
                y = y.sin()
        x.grad(y.sum().backward())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_saved() -> None:
    plain = peak(Autodiff(NumPy()))
    assert plain > 50 * 800_000  # one array an operation
    assert peak(Autodiff(NumPy(), recompute=True)) < 0.5 * plain  # one a product, and those between two at work


@pytest.mark.full
def test_a_long_chain_of_cheap_operations_does_not_overflow() -> None:
    x = px.tensor([1.0], device=Autodiff(NumPy(), recompute=True)).require_grad()
    y = x
    for _ in range(50_000):
        y = y * 1.0
    gradient = x.grad((y * y).backward())
    assert gradient is not None and gradient.item() == 2.0
    for _ in range(50_000):
        y = y * 1.0
    del y


def test_as_a_value() -> None:
    tape = Autodiff(NumPy(), recompute=True)
    assert tape is Autodiff(NumPy(), recompute=True) and tape is not Autodiff(NumPy()) and tape != Autodiff(NumPy())
    assert repr(tape) == "Autodiff(NumPy(), recompute=True)" and tape.recompute
    assert pickle.loads(pickle.dumps(tape)) is tape  # noqa: S301
    assert not Autodiff(NumPy()).recompute


def test_a_second_backward_finds_what_was_made_again() -> None:
    x = px.tensor([0.5], device=Autodiff(NumPy(float="f64"), recompute=True)).require_grad()
    y = x.sin().exp().sum()
    first, second = x.grad(y.backward(retain_graph=True)), x.grad(y.backward())
    assert first is not None and second is not None
    assert first.item() == second.item() == pytest.approx(np.exp(np.sin(0.5)) * np.cos(0.5))


def test_threads_share_a_graph() -> None:
    x = px.tensor(np.linspace(0.0, 1.0, 50), device=Autodiff(NumPy(float="f64"), recompute=True)).require_grad()

    def both(_: int) -> None:
        y = x
        for _ in range(30):
            y = y.sin()
        root = y.exp().sum()
        together = threading.Barrier(4)

        def work(_: int) -> Any:
            together.wait()
            found = x.grad(root.backward(retain_graph=True))
            assert found is not None
            return found.numpy()

        with ThreadPoolExecutor(4) as pool:
            first, *others = pool.map(work, range(4))
        for other in others:
            np.testing.assert_array_equal(other, first)

    for turn in range(20):
        both(turn)
