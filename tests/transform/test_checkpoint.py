"""Gradient checkpointing: the same gradients, to the last bit, from less memory.

Serves: phlox/autodiff/checkpoint.py
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import AutodiffError

BACKENDS = [Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]


class Block(px.Module):
    def __init__(self, device: Any) -> None:
        self.linear = nn.Linear(8, 8, device=device)
        self.dropout = nn.Dropout(0.5)

    def __call__(self, x: Any, *, scale: float = 1.0) -> Any:
        h = self.linear(x).tanh()
        return {"out": self.dropout(h) * scale, "norms": (h.square().sum(-1), h > 0.0)}


def network(blocks: list[Block], checkpointed: Any, x: Any) -> Any:
    total = 0.0
    for block in blocks:
        found = checkpointed(block)(x, scale=2.0)
        x = found["out"] + x
        total = total + found["norms"][0].sum()
        assert found["norms"][1].kind is px.Bool
    return total + x.exp().sum()


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "nested"])
def test_gradients_are_the_same_to_the_last_bit(backend: Any, times: int) -> None:
    def wrapped(fn: Any) -> Any:
        for _ in range(times):
            fn = px.checkpoint(fn)
        return fn

    px.random.seed(3)
    blocks = [Block(backend).init() for _ in range(3)]
    x = px.random.normal((4, 8), device=backend).require_grad()
    found: list[list[np.ndarray[Any, Any]]] = []
    for how in (lambda fn: fn, wrapped):
        with px.random.stream(5):  # of the dropout masks
            grads = network(blocks, how, x).backward()
            left = px.random.uniform((2,)).tolist()
        leaves = [x, *(param.val() for block in blocks for param in block.params())]
        gradients = [leaf.grad(grads) for leaf in leaves]
        assert all(g is not None for g in gradients)
        found.append([g.numpy() for g in gradients if g is not None] + [np.array(left)])
    for wanted, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_parameters_made_on_the_way_get_gradients() -> None:
    layer = nn.Linear(3, 3, device=Autodiff(NumPy()))
    x = px.ones((2, 3), device=Autodiff(NumPy()))
    grads = px.GradientsParams.from_grads(px.checkpoint(layer)(x).sum().backward(), layer)
    assert len(grads) == 2


def test_second_derivatives() -> None:
    def fn(x: Any) -> Any:
        return (x.sin() * x).exp().sum()

    x = px.tensor([0.3, -1.0, 2.0], device=NumPy(float="f64"))
    np.testing.assert_array_equal(px.hessian(px.checkpoint(fn))(x).numpy(), px.hessian(fn)(x).numpy())


def test_without_a_tape_the_function_is_called_as_it_is() -> None:
    calls: list[Any] = []
    fn = px.checkpoint(lambda x: calls.append(x) or x * 2.0)
    assert fn(px.tensor([1.0])).tolist() == [2.0] and len(calls) == 1
    untracked = fn(px.tensor([1.0], device=Autodiff(NumPy())))
    assert not untracked.is_require_grad() and len(calls) == 2


def peak(backend: Any, how: Any) -> int:
    x = px.ones((100_000,), device=backend).require_grad()

    def block(x: Any) -> Any:
        for _ in range(10):
            x = x.sin()
        return x

    gc.collect()
    tracemalloc.start()
    try:
        y = x
        for _ in range(10):
            y = how(block)(y)
        x.grad(y.sum().backward())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.full
def test_memory_is_saved() -> None:
    plain = peak(Autodiff(NumPy()), lambda fn: fn)
    assert plain > 100 * 400_000  # one array an operation
    assert peak(Autodiff(NumPy()), px.checkpoint) < 0.35 * plain  # one a block, and those of the block at work
    # As a strategy of the decorator: cheap values are made again.
    assert peak(Autodiff(NumPy(), recompute=True), px.checkpoint) < 0.35 * plain


def test_memory_is_saved_in_a_compiled_program() -> None:
    backend = Autodiff(Jax())
    weights = [np.eye(64, dtype=np.float32)] * 6

    def temporary(how: Any) -> int:
        def fn(x: Any, *ws: Any) -> Any:
            leaves = [px.Tensor.from_primitive(w, backend).require_grad() for w in ws]

            def block(x: Any, w: Any) -> Any:
                h = x @ w
                for _ in range(4):
                    h = (h.tanh() * h.exp()).sin()
                return h

            y = px.Tensor.from_primitive(x, backend)
            for w in leaves:
                y = how(block)(y, w)
            grads = y.sum().backward()
            return [w.grad(grads).primitive for w in leaves]  # pyright: ignore[reportOptionalMemberAccess]

        program = jax.jit(fn).lower(np.ones((1024, 64), np.float32), *weights).compile()
        memory: Any = program.memory_analysis()
        return memory.temp_size_in_bytes

    assert temporary(px.checkpoint) < 0.5 * temporary(lambda fn: fn)


class Counter(px.Module):
    """Counts its calls, and computes with the count."""

    def __init__(self, device: Any) -> None:
        self.linear = nn.Linear(3, 3, device=device)
        self.calls = px.Param(px.zeros((), device=device), trained=False)

    def __call__(self, x: Any) -> Any:
        self.calls.set(self.calls.val() + 1.0)
        return (self.linear(x) * self.calls.val()).tanh()


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_running_statistics_are_set_once_and_read_as_they_were(backend: Any, compiled: bool) -> None:
    px.random.seed(1)
    model = Counter(backend).init()
    x = px.ones((2, 3), device=backend)

    def run(model: Any, x: Any, how: Any) -> Any:
        block = how(lambda x: model(x) + x)  # the module comes from outside
        h = block(how(how(lambda x: block(x) * 2.0))(x))
        return px.GradientsParams.from_grads((h * model(x)).sum().backward(), model)

    found: list[list[np.ndarray[Any, Any]]] = []
    for how in (lambda fn: fn, px.checkpoint):
        model.calls.set(px.zeros((), device=backend))
        step = px.compile(lambda m, x, how=how: run(m, x, how)) if compiled else lambda m, x, how=how: run(m, x, how)
        found.append([g.numpy() for _, g in step(model, x).items()])
        assert model.calls.val().item() == 3.0
    for wanted, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5 if compiled else 0.0, atol=1e-6 if compiled else 0.0)


def test_modules_and_gradients_as_results() -> None:
    backend = Autodiff(NumPy())
    px.random.seed(1)
    model = nn.Linear(2, 2, device=backend).init()
    x = px.ones((3, 2), device=backend)

    def halved(model: Any, x: Any) -> Any:
        grads = px.grad(lambda m: m(x).square().sum())(model)
        return model, model.map(lambda path, param: param.around(param.val() * 0.5)), grads

    same, half, grads = px.checkpoint(halved)(model, x)
    assert len(grads) == 2 and next(iter(grads.items()))[1].backend is backend.inner
    found = px.GradientsParams.from_grads((half(x) * same(x)).sum().backward(), same)
    wanted = px.grad(lambda m: (halved(m, x)[1](x) * m(x)).sum())(model)
    for (_, a), (_, b) in zip(found.items(), wanted.items(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_results_must_be_on_the_backend_of_the_arguments() -> None:
    x = px.ones((2,), device=Autodiff(NumPy())).require_grad()
    with pytest.raises(AutodiffError, match=r"checkpoint: .*given tensors on Autodiff\(NumPy\(\)\).*one on Jax\(\)"):
        px.checkpoint(lambda x: px.ones((2,), device="jax"))(x)
    assert px.checkpoint(lambda x: x.inner())(x).backend is NumPy()
