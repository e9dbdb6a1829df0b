"""Whatever PyTorch is doing for somebody else (tracing, transforming, another default device), nothing of it stays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import phlox as px
from phlox import nn
from phlox.backend import Torch
from phlox.backend.torch.ops import random as generator
from phlox.errors import ModuleError, RandomnessError

DEVICE = Torch().device()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # PyTorch's own

Work = Callable[[Any], Any]


def exported(work: Work) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return work(x)

    torch.export.export(Model(), (torch.ones(2),), strict=False)


def faked(work: Work) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        work(mode.from_tensor(torch.ones(2)))


def faked_strictly(work: Work) -> None:
    with FakeTensorMode() as mode:
        work(mode.from_tensor(torch.ones(2)))


def traced(tracing_mode: Any) -> Callable[[Work], Any]:
    return lambda work: make_fx(work, tracing_mode=tracing_mode)(torch.ones(2))


def on_meta(work: Work) -> None:
    with torch.device("meta"):
        work(torch.ones(2, device="cpu"))


def in_inference(work: Work) -> None:
    with torch.inference_mode():
        work(torch.ones(2))


def with_doubles(work: Work) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        work(torch.ones(2, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


SCOPES: dict[str, Callable[[Work], Any]] = {
    "export": exported,
    "FakeTensorMode": faked,
    "FakeTensorMode, strict": faked_strictly,
    "make_fx, real": traced("real"),
    "make_fx, fake": traced("fake"),
    "make_fx, symbolic": traced("symbolic"),
    "func.vmap": lambda work: torch.func.vmap(work)(torch.ones(3, 2)),
    "func.grad": lambda work: torch.func.grad(lambda x: work(x).sum())(torch.ones(2)),
    "func.jvp": lambda work: torch.func.jvp(work, (torch.ones(2),), (torch.ones(2),)),
    "func.functionalize": lambda work: torch.func.functionalize(work)(torch.ones(2)),
    "compile": lambda work: torch.compile(work, backend="eager")(torch.ones(2)),
    "device meta": on_meta,
    "inference mode": in_inference,
    "doubles": with_doubles,
}
TRACING = ["export", "FakeTensorMode", "FakeTensorMode, strict", "make_fx, real", "make_fx, fake"]
numbers = iter(0.001 + 0.37 * place for place in range(1000))  # no two the same: the first use is what counts


def tensor(x: Any) -> px.Tensor:
    return px.Tensor.from_primitive(x, Torch(), px.Float)


def everywhere(x: px.Tensor, number: float) -> list[px.Tensor]:
    return [x + number, number - x, x * number, number / x, x**number, x.maximum(number), px.where(x > 0.0, x, number)]


def sound(number: float) -> None:
    """Eager operations with a number are as ever, also on PyTorch's own tape."""
    x = tensor(torch.full((2,), 2.0))
    expected = [2 + number, number - 2, 2 * number, number / 2, 2**number, max(2, number), 2.0]
    for found, value in zip(everywhere(x, number), expected, strict=True):
        assert type(found.primitive) is torch.Tensor and found.primitive.device.type == "cpu"
        np.testing.assert_allclose(found.numpy(), np.full(2, value, np.float32), rtol=1e-6)
    leaf = torch.ones(2, requires_grad=True)
    (tensor(leaf) * number).primitive.sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), np.full(2, number), rtol=1e-6)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_number_first_used_within_is_a_number_afterwards(scope: str) -> None:
    number = next(numbers)

    def work(x: Any) -> Any:
        return sum(one.primitive for one in everywhere(tensor(x), number))

    SCOPES[scope](work)
    sound(number)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_number_used_before_can_be_used_within(scope: str) -> None:
    number = next(numbers)
    sound(number)
    SCOPES[scope](lambda x: sum(one.primitive for one in everywhere(tensor(x), number)))
    sound(number)


@pytest.mark.parametrize("scope", [name for name in SCOPES if name != "compile"])
def test_compiled_functions_and_their_numbers(scope: str) -> None:
    refuses_values = scope in ("FakeTensorMode, strict", "make_fx, fake", "make_fx, symbolic")
    run = px.compile(lambda x, number: x * number)
    ones, number = tensor(torch.ones(2)), next(numbers)
    run(ones, number)

    def work(x: Any) -> Any:
        for _ in range(3):
            run(tensor(x) if refuses_values else ones, number)
        return run(tensor(x), number).primitive

    SCOPES[scope](work)
    for _ in range(3):
        np.testing.assert_allclose(run(ones, number).numpy(), np.full(2, number), rtol=1e-6)


def test_a_compiled_function_is_a_part_of_a_trace() -> None:
    run = px.compile(lambda x, number: x * number + 1.0)
    run(tensor(torch.ones(2)), 2.0)
    graph = make_fx(lambda x: run(tensor(x), 2.0).primitive)(torch.ones(2))
    np.testing.assert_array_equal(graph(torch.full((2,), 5.0)), [11.0, 11.0])


@pytest.mark.parametrize("scope", [name for name in SCOPES if name != "compile"])
def test_weights_that_are_kept_in_another_order(scope: str) -> None:
    layer = nn.Lstm(3, 16, device=DEVICE).init(0)
    x = px.ones((2, 4, 3), device=DEVICE)
    expected = layer(x)[0].numpy()
    other = nn.Lstm(3, 16, device=DEVICE).init(0)

    def work(one: Any) -> Any:
        with suppress(Exception):  # whether the kernel can be traced is PyTorch's affair
            other(x)
        return one

    SCOPES[scope](work)
    np.testing.assert_allclose(other(x)[0].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("scope", TRACING)
def test_parameters_and_draws_within_a_trace_are_refused(scope: str) -> None:
    layer = nn.Linear(2, 2, device=DEVICE)
    with pytest.raises(ModuleError, match=r"first used inside a transformation of JAX or PyTorch .* model\.init\(\)"):
        SCOPES[scope](lambda x: layer(tensor(x)).primitive)
    np.testing.assert_array_equal(layer(px.ones((2,), device=DEVICE)).shape, (2,))
    running = px.Param(px.zeros((2,), device=DEVICE), trained=False)
    with px.random.stream(3) as stream, pytest.raises(RandomnessError, match="constant of the program"):
        SCOPES[scope](lambda x: (tensor(x) + px.random.uniform((2,), device=DEVICE)).primitive)
    assert stream.position == 0
    if "real" not in scope:  # there tensors have values
        with pytest.raises(ModuleError, match="would get a value from inside"):
            SCOPES[scope](lambda x: (running.set(tensor(x) * 2.0), x)[1])
        assert running.val().tolist() == [0.0, 0.0]


def test_draws_of_the_torch_generator_after_a_trace() -> None:
    state = np.array([1, 2, 3], np.uint32)
    generator._TABLES.clear()
    with FakeTensorMode():
        generator.random_normal(state, (4,), native=True)
    found = generator.random_normal(state, (4,), native=True)
    np.testing.assert_array_equal(found.numpy(), generator.random_normal(state, (4,)).numpy())
