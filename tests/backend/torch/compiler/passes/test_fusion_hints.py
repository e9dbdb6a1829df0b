"""`compile` on PyTorch: what its compiler is given to make loops of.

Serves: phlox/backend/torch/compiler/graph.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import _inductor as inductor
from torch._inductor import config
from torch._inductor.utils import run_and_get_cpp_code

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.graph import shape_of
from tests.transform.steps import data, network, step, values

TAPE = Autodiff(Torch()).device()
ADAMW = optim.AdamWConfig(weight_decay=0.1)
_aten: Any = torch.ops.aten


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that would be compiled, and are run as they are."""
    found: list[Any] = []

    def seen(graph: Any, _: Any) -> Any:
        found.append(graph)
        return graph.forward

    monkeypatch.setenv(VARIABLE, "inductor")
    monkeypatch.setattr(inductor, "compile", seen)
    return found


def trained(run: Any, steps: int = 3) -> px.Module:
    model, optimizer = network(device=TAPE, rate=0.0), ADAMW.init()
    for number in range(steps):
        model, _ = run(model, optimizer, 0.01 / (number + 1), data(device=TAPE))
    return model


def targets(graph: Any) -> list[Any]:
    return [node.target for node in graph.graph.nodes]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_what_the_compiler_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers of the rates of the moments are taken once a step, and biases added on the way."""
    monkeypatch.setenv(VARIABLE, "inductor")
    with config.patch(force_disable_caches=True):
        found, code = run_and_get_cpp_code(trained, px.compile(step))
    assert code.count("expm1(") == 2
    assert "kernels.mm(" in code and "addmm(" not in code
    for a, b in zip(values(found), values(trained(step)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_no_loop_reads_a_number_that_is_not_there_yet(graphs: list[Any]) -> None:
    found = trained(px.compile(step))
    for a, b in zip(values(found), values(trained(step)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    (graph,) = graphs
    loops = [node for node in graph.graph.nodes if math.prod(shape_of(node) or ()) > 1]
    read = {part for node in loops for part in node.all_input_nodes}
    numbers = [node for node in read if node.op == "call_function" and shape_of(node) == ()]
    assert {node.target for node in numbers} == {_aten.as_strided.default}
    assert len(numbers) >= 3  # the rate, the decay, and what the second moment is corrected by


LAYERS: dict[str, tuple[Any, Any, bool]] = {
    "before an activation": ("f32", lambda d: [nn.Linear(4, 8, device=d), nn.Gelu()], True),
    "before a product": ("f32", lambda d: [nn.Linear(4, 8, device=d), nn.Linear(8, 3, bias=False, device=d)], False),
    "returned": ("f32", lambda d: [nn.Linear(4, 8, device=d)], False),
    "of halves, which would be rounded once more": ("bf16", lambda d: [nn.Linear(4, 8, device=d), nn.Gelu()], False),
}


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4)])
@pytest.mark.parametrize("name", LAYERS)
def test_whether_a_bias_is_added_in_a_loop(graphs: list[Any], name: str, shape: tuple[int, ...]) -> None:
    element, layers, expected = LAYERS[name]
    device = Torch(float=element).device()
    model = nn.Sequential(layers(device)).init(0)
    x = data(device=device).reshape(shape)
    found = px.compile(lambda model, x: model(x))(model, x)
    np.testing.assert_allclose(
        found.numpy().astype(float), model(x).numpy().astype(float), rtol=1e-5 if element == "f32" else 1e-2
    )
    (graph,) = graphs
    assert (_aten.addmm.default not in targets(graph)) == expected
    assert _aten.mm.default in targets(graph) or not expected


@pytest.mark.parametrize("of", ["y", "the mean", "all"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 3)])
def test_batch_norm_is_a_product_and_a_sum_in_its_loop(
    graphs: list[Any], shape: tuple[int, ...], affine: bool, of: str
) -> None:
    rng = np.random.default_rng(0)
    x, weight = (px.tensor(rng.normal(1, 3, shape).astype(np.float32), device=TAPE) for _ in range(2))
    rows = [px.tensor(rng.normal(size=4).astype(np.float32), device=TAPE) for _ in range(2 if affine else 0)]

    def run(x: px.Tensor, weight: px.Tensor, *rows: px.Tensor) -> list[px.Tensor | None]:
        leaves = [one.require_grad() for one in (x, *rows)]
        y, mean, variance = px.functional.batch_norm_train(*leaves)
        parts = {"y": (y * weight).sum(), "the mean": (mean * mean).sum()}
        parts["all"] = parts["y"] + parts["the mean"] + (variance * variance).sum()
        gradients = parts[of].backward()
        return [y, mean, variance, *(leaf.grad(gradients) for leaf in leaves)]

    found = px.compile(run)(x, weight, *rows)
    for one, other in zip(found, run(x, weight, *rows), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)
    (graph,) = graphs
    assert not any("batch_norm" in str(target) for target in targets(graph))
    if of == "y":
        loops = {node.target for node in graph.graph.nodes if shape_of(node) == shape}
        assert _aten.mul.Tensor in loops and not loops & {_aten.rsqrt.default, _aten.div.Tensor}
