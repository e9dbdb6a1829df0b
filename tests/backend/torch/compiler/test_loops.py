"""Loops of programs are one body, called again and again; they give what the ordinary loop does."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler import loops, pipeline

DEVICE = Autodiff(Torch()).device()
RNG = np.random.default_rng(0)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled."""
    graphs: list[Any] = []
    compile_graph = pipeline.compile_graph

    def noted(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return compile_graph(graph, example)

    monkeypatch.setattr(pipeline, "compile_graph", noted)
    return graphs


def floats(*shape: int) -> px.Tensor:
    return px.tensor(RNG.normal(size=shape), device=DEVICE, kind=px.Float)


def test_the_body_of_a_long_loop_is_compiled_once(compiled: list[Any]) -> None:
    """Operands: a carry that stays, one that changes, a weight from outside, a draw in each step, and a nested loop."""
    w, x, xs = floats(4, 4), floats(3, 4), floats(50, 3, 4)

    def body(carry: dict[str, Any], x: px.Tensor) -> tuple[dict[str, Any], px.Tensor]:
        inner, _ = px.scan(lambda h, _: (h * 0.5 + x, None), carry["h"], length=4)
        h = (inner @ w).tanh() * px.random.bernoulli((3, 1), 0.9, device=DEVICE).float()
        return {"h": h, "count": carry["count"] + 1, "same": carry["same"]}, h.sum(-1)

    def run(w: px.Tensor, x: px.Tensor, xs: px.Tensor) -> px.Tensor:
        last, sums = px.scan(body, {"h": x, "count": 0, "same": xs[0]}, xs, reverse=True)
        return last["h"].sum() + (sums * sums).mean() + last["same"].sum() + last["count"].float()

    both = px.value_and_grad(run, argnums=(0, 1, 2))
    with px.random.stream(3):
        expected, expected_grads = both(w, x, xs)
    with px.random.stream(3):
        value, grads = px.compile(both)(w, x, xs)
    np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-5)
    for g, other in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(g.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    assert len(compiled) <= 6  # the program, and two bodies forth and back


def test_a_program_holds_its_loops_and_no_other_does() -> None:
    def run(x: px.Tensor) -> px.Tensor:
        return px.scan(lambda h, _: (h * 1.25 + 0.125, None), x, length=7)[0]

    gc.collect()
    before = len(loops._loops)
    first, second = px.compile(run), px.compile(run)
    x = floats(5)
    np.testing.assert_allclose(first(x).numpy(), run(x).numpy(), rtol=1e-6)
    np.testing.assert_array_equal(second(x).numpy(), first(x).numpy())
    assert len(loops._loops) == before + 1
    del first
    gc.collect()
    np.testing.assert_allclose(second(x).numpy(), run(x).numpy(), rtol=1e-6)
    del second
    gc.collect()
    assert len(loops._loops) == before


def test_loops_that_differ_in_a_constant_alone_differ() -> None:
    x = floats(3)
    for numbers in ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0]):
        constant = np.asarray(numbers, np.float32)

        def run(x: px.Tensor, constant: Any = constant) -> px.Tensor:
            return px.scan(lambda h, _: (h + px.tensor(constant, device=h.device), None), x, length=2)[0]

        np.testing.assert_allclose(px.compile(run)(x).numpy(), x.numpy() + 2 * constant, rtol=1e-6)
