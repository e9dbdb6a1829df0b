"""Normalisation on PyTorch: what programs make of it. (Its values and gradients are in the conformance tables.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import _inductor as inductor

import phlox as px
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.graph import shape_of

TAPE = Autodiff(Torch()).device()
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
    assert not any("batch_norm" in str(node.target) for node in graph.graph.nodes)
    if of == "y":
        loops = {node.target for node in graph.graph.nodes if shape_of(node) == shape}
        assert _aten.mul.Tensor in loops and not loops & {_aten.rsqrt.default, _aten.div.Tensor}
